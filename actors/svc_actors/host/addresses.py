"""The addresses by which this server reaches the world, as far as it knows them itself."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_FAR: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Documentation (RFC 5737, RFC 3849): what leads there is the default route, and nothing is sent."""


def public_addresses() -> tuple[IPv4Address | IPv6Address, ...]:
    """One a family at most. None of a server behind NAT: its own address is of no use to anybody."""
    found = []
    for family, far in _FAR:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 53))
                address = ip_address(probe.getsockname()[0])
        except OSError:
            continue
        if address.is_global:
            found.append(address)
    return tuple(found)
