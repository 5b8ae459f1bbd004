"""The public addresses of this server, as far as it can find them itself."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

_FAR: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Documentation addresses (RFC 5737, RFC 3849): they are used only to find the default route; nothing is sent to
them."""


def public_addresses() -> tuple[IPv4Address | IPv6Address, ...]:
    """The public addresses, at most one per family. For a server behind NAT there are none: its own address cannot be
    reached from outside."""
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
