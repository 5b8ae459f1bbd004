"""The arithmetic of pools: addresses and sub-prefixes are counted as slots; 0 is the first of the pool's prefix.

A slot is what one machine receives: an address of IPv4, a sub-prefix of IPv6. Nothing here knows the database; the same
arithmetic in SQL is the function `pool_address`. Numbers instead of addresses let one query find gaps in a pool of
either family.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

DEFAULT_PREFIX_LEN: Final = 64
MOST_SLOT_BITS: Final = 62
"""The most bits of a slot's number: slots, and the number of slots, are stored as a bigint (63 bits and the sign)."""


@dataclass(frozen=True)
class Slots:
    """The division of a pool's prefix into slots. `prefix_len` is 32 for IPv4."""

    cidr: IPNetwork
    prefix_len: int

    @property
    def family(self) -> int:
        return self.cidr.version

    @property
    def count(self) -> int:
        return int(1 << (self.prefix_len - self.cidr.prefixlen))

    def slot_of(self, ip: IPAddress) -> int | None:
        """The slot that contains this address; None for an address outside the pool."""
        if ip.version != self.cidr.version or ip not in self.cidr:
            return None
        # The shift drops the bits within a slot, so every address of a sub-prefix gives the sub-prefix's slot.
        return (int(ip) - int(self.cidr.network_address)) >> (self.cidr.max_prefixlen - self.prefix_len)

    def network_at(self, slot: int) -> IPNetwork:
        """The address or sub-prefix of a slot: 192.0.2.5/32, 2001:db8:0:5::/64."""
        first = int(self.cidr.network_address) + (slot << (self.cidr.max_prefixlen - self.prefix_len))
        if isinstance(self.cidr, IPv4Network):
            return IPv4Network((first, self.prefix_len))
        return IPv6Network((first, self.prefix_len))

    def text_at(self, slot: int) -> str:
        return address_text(self.network_at(slot))


def guest_address(network: IPNetwork) -> IPAddress:
    """The address that the guest configures: the received address itself, or the first usable one of a sub-prefix."""
    # The guest gets the address after the first: a sub-prefix's first address is the anycast address of its routers
    # (RFC 4291, 2.6.1).
    return network.network_address if network.prefixlen == network.max_prefixlen else network.network_address + 1


def address_text(network: IPNetwork) -> str:
    """The form on the wire and in the API: "192.0.2.5", "2001:db8:0:5::/64"."""
    return str(network.network_address) if network.version == 4 else str(network)
