"""What an operator says about DNS."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from svc_actors.host.addresses import public_addresses
from svc_actors.host.knot import Authority, KnotSettings
from svc_actors.host.knot.names import host_name

UNNAMED: Final = "nameserver.invalid"
"""What zones name as their server until the operator has given it a name: nothing can be delegated to it (RFC 2606)."""


@dataclass(frozen=True)
class DnsSettings:
    """`nameservers` are the names by which the world knows the name servers of the zones, this one first; without them,
    the panel's own name. `addresses` are where sites are reached, without them those that this server finds itself."""

    nameservers: tuple[str, ...] = ()
    hostmaster: str | None = None
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    knot: KnotSettings = field(default_factory=KnotSettings)

    def authority(self, panel: str) -> Authority:
        """`panel` is the name of the panel, or an address by which it is reached until it has one."""
        try:
            own = host_name(panel)
        except ValueError:
            own = UNNAMED
        return Authority(self.nameservers or (own,), self.hostmaster or f"hostmaster@{own}")

    def site_addresses(self) -> tuple[IPv4Address | IPv6Address, ...]:
        return self.addresses or public_addresses()
