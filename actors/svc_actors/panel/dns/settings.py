"""The operator's settings of DNS."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from svc_webhost.addresses import public_addresses
from svc_webhost.knot import Authority, KnotSettings
from svc_webhost.knot.names import host_name

UNNAMED: Final = "nameserver.invalid"
"""The name server in zones until the operator has configured one. Nothing can be delegated to this name (RFC 2606)."""


@dataclass(frozen=True)
class DnsSettings:
    """`nameservers`: public names of the name servers of the zones, this one first; by default the panel's own name.
    `addresses`: where sites are reached; by default the addresses that this server finds itself."""

    nameservers: tuple[str, ...] = ()
    hostmaster: str | None = None
    addresses: tuple[IPv4Address | IPv6Address, ...] = ()
    knot: KnotSettings = field(default_factory=KnotSettings)

    def authority(self, panel: str) -> Authority:
        """`panel` is the name of the panel or, until it has one, its address."""
        try:
            own = host_name(panel)
        except ValueError:
            own = UNNAMED
        return Authority(self.nameservers or (own,), self.hostmaster or f"hostmaster@{own}")

    def site_addresses(self) -> tuple[IPv4Address | IPv6Address, ...]:
        return self.addresses or public_addresses()
