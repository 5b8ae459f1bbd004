"""Computes the commands that give a running guest its machine's network, from what the guest's agent reports. These are
pure functions.

Only what the record has or had is changed. An address is added if the guest does not have it, and removed if the
earlier record had it and the new one does not. The default route of a family is set if the guest had none of the NIC's
addresses of that family, or if the gateway has changed. Everything else that the guest's owner has configured stays. At
its next start the guest reads the same settings from the seed.

Commands are argument lists of `ip` that iproute2 and busybox both understand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_interface

from pydantic import BaseModel, ConfigDict, Field

from svc_nodeagent.protocol import GuestAddress, NetworkSpec, NicSpec
from svc_nodeagent.protocol.values import GuestInterface

Command = tuple[str, ...]


class NicNotFound(LookupError):  # noqa: N818 - named for what it says
    """The guest has no NIC with this MAC: the guest has not detected the NIC yet, or was configured to use another
    MAC."""


@dataclass(frozen=True)
class GuestNic:
    """A NIC as the guest's agent reports it."""

    name: str
    mac: str
    addresses: frozenset[GuestInterface]


class _Answer(BaseModel):
    """An answer of the guest's agent. The guest controls its agent, so the answer may contain anything."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Address(_Answer):
    address: str = Field(alias="ip-address")
    prefix: int


class _Interface(_Answer):
    name: str
    mac: str = Field(alias="hardware-address", default="")
    addresses: tuple[_Address, ...] = Field(alias="ip-addresses", default=())


class Interfaces(_Answer):
    """The answer to `guest-network-get-interfaces`."""

    found: tuple[_Interface, ...] = Field(alias="return")

    def nics(self) -> tuple[GuestNic, ...]:
        """The NICs in the answer. Raises `ValueError` for an invalid address."""
        return tuple(
            GuestNic(
                name=each.name,
                mac=each.mac.lower(),
                addresses=frozenset(ip_interface(f"{address.address}/{address.prefix}") for address in each.addresses),
            )
            for each in self.found
        )


class _Process(_Answer):
    pid: int


class ProcessStarted(_Answer):
    """The answer to `guest-exec`."""

    process: _Process = Field(alias="return")


class _Status(_Answer):
    exited: bool
    exitcode: int | None = None


class Status(_Answer):
    """The answer to `guest-exec-status`."""

    status: _Status = Field(alias="return")


def changes(seen: Sequence[GuestNic], desired: NetworkSpec, previous: NetworkSpec) -> tuple[Command, ...]:
    """Commands in the order to run them. Raises `NicNotFound`."""
    by_mac = {own.mac: own for own in seen}
    earlier = {nic.nic_id: nic for nic in previous.nics}
    commands: list[Command] = []
    for index, nic in enumerate(desired.nics):
        if nic.mac not in by_mac:
            raise NicNotFound(nic.mac)
        own, before = by_mac[nic.mac], earlier.get(nic.nic_id)
        commands += _addresses(own, nic, before)
        if index == 0:  # the default routes go through the first NIC
            commands += _routes(own, nic, before)
    return tuple(commands)


def in_order(nic: NicSpec) -> tuple[GuestAddress, ...]:
    """A NIC's addresses, the primary one first: the guest's source address, whose gateway it uses."""
    return tuple(sorted(nic.addresses, key=lambda address: not address.primary))


def gateways(nic: NicSpec) -> dict[int, GuestAddress]:
    """For each family, the address whose gateway is that of the default route."""
    found: dict[int, GuestAddress] = {}
    for address in in_order(nic):
        found.setdefault(address.interface.version, address)
    return found


def _addresses(own: GuestNic, nic: NicSpec, before: NicSpec | None) -> list[Command]:
    wanted = [address.interface for address in in_order(nic)]
    missing = [address for address in wanted if address not in own.addresses]
    had = [address.interface for address in before.addresses] if before is not None else []
    surplus = [address for address in had if address in own.addresses and address not in wanted]
    return [
        *(_ip(address.version, "address", "replace", str(address), "dev", own.name) for address in missing),
        *(_ip(address.version, "address", "del", str(address), "dev", own.name) for address in surplus),
    ]


def _routes(own: GuestNic, nic: NicSpec, before: NicSpec | None) -> list[Command]:
    commands: list[Command] = []
    earlier = gateways(before) if before is not None else {}
    for family, address in gateways(nic).items():
        known = any(other.interface in own.addresses for other in nic.addresses if other.interface.version == family)
        if known and family in earlier and earlier[family].gateway == address.gateway:
            continue
        if address.on_link:  # the gateway need not lie in the NIC's own network
            host = f"{address.gateway}/{address.interface.max_prefixlen}"
            commands.append(_ip(family, "route", "replace", host, "dev", own.name))
        commands.append(_ip(family, "route", "replace", "default", "via", address.gateway, "dev", own.name))
    return commands


def _ip(family: int, *arguments: str) -> Command:
    return (f"-{family}", *arguments)
