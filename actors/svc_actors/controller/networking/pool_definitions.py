"""Definitions of pools: fills in the defaults of a request, and refuses contradictory values. No database access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address, ip_network
from typing import Final
from uuid import UUID

from svc_actors.controller.networking.pool_arithmetic import (
    DEFAULT_PREFIX_LEN,
    MOST_SLOT_BITS,
    IPAddress,
    IPNetwork,
    Slots,
)
from svc_common.errors import wrong_field
from svc_nodeagent.protocol import Topology as Topology

LINK_LOCAL_GATEWAY: Final = IPv6Address("fe80::1")
_NOBODYS: Final = tuple(
    ip_network(text)
    for text in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/8", "fe80::/10", "ff00::/8")
)


class GatewayMode(StrEnum):
    """How a guest reaches its gateway: as if it were on the same link, or inside its own subnet."""

    ONLINK = "onlink"
    SUBNET = "subnet"


@dataclass(frozen=True, kw_only=True)
class NewPool:
    """A request for a pool. Defaults: `topology` is nat for IPv4 and routed for IPv6; `gateway` is the first usable
    address, fe80::1 for IPv6; the range is every usable address or sub-prefix; the guest's prefix length is 32 with an
    on-link gateway, otherwise the pool's, and for IPv6 the sub-prefix's. Empty `node_ids` means every node of the
    location. The ends of the range are addresses; for IPv6, in the first and the last sub-prefix."""

    name: str
    location_id: UUID
    cidr: IPNetwork
    prefix_len: int | None = None
    topology: str | None = None
    gateway: IPAddress | None = None
    gateway_mode: GatewayMode = GatewayMode.ONLINK
    guest_prefix_len: int | None = None
    range_start: IPAddress | None = None
    range_end: IPAddress | None = None
    nameservers: Sequence[IPAddress] = ()
    node_ids: Sequence[UUID] = ()
    vlan: int | None = None
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class PoolDefinition(Slots):
    """A pool with all defaults filled in."""

    name: str
    location_id: UUID
    topology: str
    gateway: IPAddress
    gateway_mode: GatewayMode
    guest_prefix_len: int
    first_slot: int
    last_slot: int
    nameservers: tuple[IPAddress, ...]
    node_ids: tuple[UUID, ...]
    vlan: int | None
    enabled: bool

    @property
    def range_start(self) -> IPAddress:
        return self.network_at(self.first_slot).network_address

    @property
    def range_end(self) -> IPAddress:
        return self.network_at(self.last_slot).network_address

    def columns(self) -> dict[str, object]:
        """The columns of `pools` that may change, by name."""
        return {
            "name": self.name,
            "location_id": self.location_id,
            "range_start": self.range_start,
            "range_end": self.range_end,
            "first_slot": self.first_slot,
            "last_slot": self.last_slot,
            "gateway": self.gateway,
            "gateway_mode": self.gateway_mode.value,
            "guest_prefix_len": self.guest_prefix_len,
            "topology": self.topology,
            "vlan": self.vlan,
            "nameservers": list(self.nameservers),
            "node_ids": list(self.node_ids),
            "enabled": self.enabled,
        }


def define(new: NewPool) -> PoolDefinition:
    """Fill in the defaults. Raises invalid and names the field whose requested value is not possible."""
    slots = _slots(new.cidr, new.prefix_len)
    topology = new.topology or ("nat" if slots.family == 4 else "routed")
    if topology == "nat" and slots.family == 6:
        raise wrong_field(
            "topology",
            "nat is only for IPv4",
            hint="Choose routed or bridged: in an IPv6 pool each guest has a prefix of its own and needs no NAT.",
        )
    if new.vlan is not None and topology != "bridged":
        raise wrong_field("vlan", f"a {topology} pool has no VLAN; only a bridged pool has one")
    first, last = (1, slots.count - 2) if slots.family == 4 else (0, slots.count - 1)
    first = first if new.range_start is None else _inside(slots, "range_start", new.range_start)
    last = last if new.range_end is None else _inside(slots, "range_end", new.range_end)
    if last < first:
        raise wrong_field("range_end", "the range ends before it starts")
    gateway = new.gateway or _default_gateway(slots)
    if not gateway.is_link_local or slots.family == 4:
        _inside(slots, "gateway", gateway)
    for server in new.nameservers:
        if server.is_loopback or server.is_unspecified or server.is_multicast:
            raise wrong_field("nameservers", f"guests cannot use {server} as a DNS server")
    definition = PoolDefinition(
        cidr=slots.cidr,
        prefix_len=slots.prefix_len,
        name=new.name,
        location_id=new.location_id,
        topology=topology,
        gateway=gateway,
        gateway_mode=new.gateway_mode,
        guest_prefix_len=_guest_prefix(new, slots, topology, gateway),
        first_slot=first,
        last_slot=last,
        nameservers=tuple(new.nameservers),
        node_ids=tuple(dict.fromkeys(new.node_ids)),
        vlan=new.vlan,
        enabled=new.enabled,
    )
    _require_sound_subnet(definition)
    return definition


def _slots(cidr: IPNetwork, prefix_len: int | None) -> Slots:
    nobodys = next((each for each in _NOBODYS if each.version == cidr.version and cidr.overlaps(each)), None)
    if nobodys is not None:
        raise wrong_field("cidr", f"guests cannot have addresses in {nobodys}")
    if cidr.version == 4:
        if prefix_len not in (None, 32):
            raise wrong_field("prefix_len", "must be left out for IPv4: machines get single addresses of the pool")
        if cidr.prefixlen > 30:
            raise wrong_field("cidr", "an IPv4 pool is a /30 or larger")
        return Slots(cidr, 32)
    prefix_len = max(DEFAULT_PREFIX_LEN, cidr.prefixlen) if prefix_len is None else prefix_len
    if not cidr.prefixlen <= prefix_len <= 128:
        raise wrong_field("prefix_len", f"a sub-prefix of {cidr} is a /{cidr.prefixlen} to a /128")
    if prefix_len - cidr.prefixlen > MOST_SLOT_BITS:
        raise wrong_field(
            "prefix_len",
            f"{cidr} has too many sub-prefixes of the length /{prefix_len}; a pool has at most 2^{MOST_SLOT_BITS}",
        )
    return Slots(cidr, prefix_len)


def _default_gateway(slots: Slots) -> IPAddress:
    return slots.cidr.network_address + 1 if slots.family == 4 else LINK_LOCAL_GATEWAY


def _guest_prefix(new: NewPool, slots: Slots, topology: str, gateway: IPAddress) -> int:
    longest = slots.cidr.max_prefixlen
    prefix = new.guest_prefix_len
    if topology == "routed" and slots.family == 4:
        # The host routes each address by itself (specification, Pool). With a shorter prefix a guest would expect its
        # neighbours on its own link, where they are not.
        if prefix not in (None, longest):
            raise wrong_field("guest_prefix_len", "a routed IPv4 guest has a /32")
        if new.gateway_mode is GatewayMode.SUBNET:
            raise wrong_field("gateway_mode", "a routed IPv4 guest has a /32, so its gateway is onlink")
    if prefix is None:
        on_link = new.gateway_mode is GatewayMode.ONLINK or gateway.is_link_local
        prefix = slots.prefix_len if on_link else slots.cidr.prefixlen
    if not slots.cidr.prefixlen <= prefix <= longest:
        raise wrong_field("guest_prefix_len", "shorter than the pool's own prefix, or longer than an address")
    return prefix


def _require_sound_subnet(pool: PoolDefinition) -> None:
    """Unless the gateway is declared on-link, the subnet of every guest of the range must contain the gateway. Neither
    the gateway nor a guest may have the network or broadcast address of that subnet (RFC 1122, 3.2.1.3)."""
    if pool.gateway_mode is GatewayMode.ONLINK or pool.gateway.is_link_local:
        return
    subnet = ip_network(f"{pool.gateway}/{pool.guest_prefix_len}", strict=False)
    if pool.range_start not in subnet or pool.range_end not in subnet:
        raise wrong_field(
            "guest_prefix_len",
            f"with /{pool.guest_prefix_len} {pool.gateway} is not in the subnet of every guest of the range",
            hint="Choose a shorter prefix, or gateway_mode onlink.",
        )
    if subnet.version == 6 or subnet.prefixlen > 30:
        return
    nobodys: dict[IPAddress, str] = {subnet.network_address: "network", subnet.broadcast_address: "broadcast"}
    fields = {"gateway": pool.gateway}
    if subnet != pool.cidr:  # Otherwise the pool reserves both addresses for itself.
        fields |= {"range_start": pool.range_start, "range_end": pool.range_end}
    for field, ip in fields.items():
        if ip in nobodys:
            raise wrong_field(field, f"{ip} is the {nobodys[ip]} address of the guests' subnet {subnet}")


def _inside(slots: Slots, field: str, ip: IPAddress) -> int:
    slot = slots.slot_of(ip)
    if slot is None:
        raise wrong_field(field, f"{ip} is not inside {slots.cidr}")
    return slot
