"""A machine's network as its owner sees and changes it: NICs, addresses, groups, rate; and whether the host has applied
the recorded network.

A change is answered as soon as it is recorded. The host applies it afterwards; `status` says whether it has. Customers
choose among the pools from which the machine may get another address (`pools`), within the limits of their plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from svc.controller.machines.models import visible_machine
from svc.controller.networking.pool_models import HeldAddress
from svc.controller.services import Controller
from svc.controller.traffic.models import TrafficMonth
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.network_attachment import NewAddress, ipv4_allowed, offered_pools
from svc_actors.controller.machines.records import ISOLATED
from svc_actors.controller.machines.spec import effective_rate, held_network
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.networking.addresses import guest_address
from svc_actors.controller.networking.pool_definitions import Topology
from svc_actors.controller.networking.security_groups import groups_of
from svc_actors.controller.traffic.periods import period_of, utc_now
from svc_actors.controller.traffic.readings import month_of
from svc_actors.runtime.actor import Ref
from svc_actors.store import Queryable, Record
from svc_common.errors import conflict

operations = Operations[Controller]()

_EXCEEDED: Final = "The machine has exceeded the traffic of its plan this month; its host blocks its traffic."
_SUSPENDED: Final = "The machine's service is suspended or terminated; its host blocks its traffic."
_REFUSED: Final = "The host could not apply it yet. It is retried, and the provider has been notified."


class NetworkStatus(StrEnum):
    """Whether the host has what is recorded: `applied`; `applying`, which takes a moment; `waiting` for the machine's
    node, or for the machine to be created or found again; `failed`, which is tried again."""

    APPLIED = "applied"
    APPLYING = "applying"
    WAITING = "waiting"
    FAILED = "failed"


class HeldState(StrEnum):
    """`releasing`: detached, and given to nobody else until the host has released it."""

    ALLOCATED = "allocated"
    RELEASING = "releasing"


class MachineAddress(Model):
    """`ip` is an IPv4 address or an IPv6 sub-prefix; `interface` what the guest configures, `network` what its host
    routes to it. The pool is shown to staff and administrators."""

    ip: str
    family: int
    interface: str
    network: str
    gateway: str
    topology: Topology
    pool_id: UUID | None
    pool_name: str | None
    state: HeldState
    primary: bool
    changed_at: datetime


class Nic(Model):
    id: UUID
    mac: str
    network_id: UUID
    network_name: str
    mtu: int
    addresses: list[MachineAddress]


class GroupName(Model):
    id: UUID
    name: str


class PoolChoice(Model):
    """A pool from which the machine may get a further address."""

    id: UUID
    name: str
    family: int
    topology: Topology


class MachineNetworking(Model):
    """`pools`: the pools from which the first NIC may get another address, in the order in which they are tried.
    `rate_mbps` is the operator's cap and `effective_rate_mbps` the cap that applies, each way; null is none.
    `ipv4_allowed`: how many addresses the plan allows; null for staff and administrators if there is no plan, since no
    limit binds them. `month`: the transfer of the current month. `error` says why `status` is failed."""

    vm_id: UUID
    nics: list[Nic]
    groups: list[GroupName]
    rate_mbps: int | None
    effective_rate_mbps: int | None
    isolated: bool
    isolated_reason: str | None
    ipv4_allowed: int | None
    ipv4_count: int
    pools: list[PoolChoice]
    month: TrafficMonth
    status: NetworkStatus
    error: str | None


class AttachResult(Model):
    address: MachineAddress
    networking: MachineNetworking


class NetworkingRequest(Request):
    id: UUID


class AttachRequest(Request):
    """By default: IPv4, the first NIC, and the first of its `pools` with a free address; public pools come before
    private ones and those behind NAT."""

    id: UUID
    family: Literal[4, 6] | None = None
    pool_id: UUID | None = None
    ip: HeldAddress | None = None
    nic_id: UUID | None = None


class DetachRequest(Request):
    id: UUID
    ip: HeldAddress


class RateRequest(Request):
    id: UUID
    rate_mbps: Annotated[int, Field(ge=0, le=1_000_000, description="Megabits a second each way; 0 is no cap.")]


@operations.declare(
    "vm.networking",
    "Show a machine's NICs, addresses, groups, rate and transfer, and whether its host has them",
    Route.get("/vms/{id}/networking"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_networking(context: Context[Controller], request: NetworkingRequest) -> MachineNetworking:
    return await networking_of(context.services.database, context.principal, request.id)


@operations.declare(
    "vm.attach_ip",
    "Attach another address to a machine",
    Route.post("/vms/{id}/ips"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def attach(context: Context[Controller], request: AttachRequest) -> AttachResult:
    database, principal = context.services.database, context.principal
    await visible_machine(database, principal, request.id)
    wanted = NewAddress(
        family=request.family,
        pool_id=request.pool_id,
        ip=request.ip,
        nic_id=request.nic_id,
        bounded=not principal.is_operator,
    )
    text = await _machine(context, request.id).ask(Machine.attach_address, context.caller, wanted)
    networking = await networking_of(database, principal, request.id)
    attached = next((address for nic in networking.nics for address in nic.addresses if address.ip == text), None)
    if attached is None:
        raise conflict(f"{text} was attached, then detached by somebody else.")
    return AttachResult(address=attached, networking=networking)


@operations.declare(
    "vm.detach_ip",
    "Detach an address from a machine; its primary address stays",
    Route.post("/vms/{id}/ips/detach"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "ip"),
    confirm=True,
)
async def detach(context: Context[Controller], request: DetachRequest) -> MachineNetworking:
    database, principal = context.services.database, context.principal
    await visible_machine(database, principal, request.id)
    await _machine(context, request.id).ask(Machine.detach_address, context.caller, request.ip)
    return await networking_of(database, principal, request.id)


@operations.declare(
    "vm.rate",
    "Cap a machine's traffic in megabits a second, each way; 0 removes the cap",
    Route.patch("/vms/{id}/network"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "rate_mbps"),
)
async def set_rate(context: Context[Controller], request: RateRequest) -> MachineNetworking:
    database, principal = context.services.database, context.principal
    await visible_machine(database, principal, request.id)
    await _machine(context, request.id).ask(Machine.set_rate, context.caller, request.rate_mbps or None)
    return await networking_of(database, principal, request.id)


async def networking_of(queryable: Queryable, principal: Principal, vm_id: UUID) -> MachineNetworking:
    """The networking of a machine. Raises not_found if the caller may not see it."""
    vm = await visible_machine(queryable, principal, vm_id)
    online = await queryable.fetchval("SELECT state = 'online' FROM nodes WHERE id = $1", vm["node_id"])
    nics = await _nics(queryable, vm_id, pools=principal.is_operator)
    addresses = [address for nic in nics for address in nic.addresses if address.state is HeldState.ALLOCATED]
    status = _status(vm, online=bool(online))
    isolated = await queryable.fetchval(f"SELECT {ISOLATED} FROM vms WHERE id = $1", vm_id)
    return MachineNetworking(
        vm_id=vm_id,
        nics=nics,
        groups=[GroupName(id=group["id"], name=group["name"]) for group in await groups_of(queryable, vm_id)],
        rate_mbps=vm["rate_mbps"],
        effective_rate_mbps=effective_rate(vm["rate_mbps"], vm["throttle_mbps"]),
        isolated=isolated,
        isolated_reason=_EXCEEDED if vm["traffic_isolated"] else _SUSPENDED if isolated else None,
        ipv4_allowed=await _ipv4_allowed(queryable, principal, vm["plan_id"]),
        ipv4_count=sum(address.family == 4 for address in addresses),
        pools=[
            PoolChoice(id=pool["id"], name=pool["name"], family=pool["family"], topology=Topology(pool["topology"]))
            for pool in await offered_pools(queryable, vm_id, vm["node_id"])
        ],
        month=TrafficMonth.of(await month_of(queryable, vm_id, period_of(utc_now()))),
        status=status,
        error=_error(vm, status, principal),
    )


async def _ipv4_allowed(queryable: Queryable, principal: Principal, plan_id: UUID | None) -> int | None:
    if plan_id is None and principal.is_operator:
        return None
    return await ipv4_allowed(queryable, plan_id)


def _status(vm: Record, *, online: bool) -> NetworkStatus:
    if vm["net_applied"] >= vm["net_wanted"]:
        return NetworkStatus.APPLIED
    if not online or vm["built_at"] is None or vm["status"] == MachineStatus.FAILED:
        return NetworkStatus.WAITING
    return NetworkStatus.APPLYING if vm["net_error"] is None else NetworkStatus.FAILED


def _error(vm: Record, status: NetworkStatus, principal: Principal) -> str | None:
    """The error to show. Customers do not see the host's own message, which may contain details of the provider's
    systems."""
    if status is not NetworkStatus.FAILED:
        return None
    return str(vm["net_error"]) if principal.is_operator else _REFUSED


async def _nics(queryable: Queryable, vm_id: UUID, *, pools: bool) -> list[Nic]:
    nics = await queryable.fetch(
        """SELECT nics.id, nics.mac, nics.network_id, networks.name AS network_name, networks.mtu
           FROM nics JOIN networks ON networks.id = nics.network_id WHERE nics.vm_id = $1 ORDER BY nics.position""",
        vm_id,
    )
    held = await queryable.fetch(
        """SELECT held.nic_id, held.ip, address_text(held.ip) AS text, held.state, held.is_primary, held.changed_at,
                  pools.id AS pool_id, pools.name AS pool_name, pools.gateway, pools.guest_prefix_len, pools.topology
           FROM allocations held JOIN pools ON pools.id = held.pool_id
           WHERE held.vm_id = $1 ORDER BY held.is_primary DESC, held.ip""",
        vm_id,
    )
    return [
        Nic(
            id=nic["id"],
            mac=str(nic["mac"]).lower(),
            network_id=nic["network_id"],
            network_name=nic["network_name"],
            mtu=nic["mtu"],
            addresses=_addresses([row for row in held if row["nic_id"] == nic["id"]], pools=pools),
        )
        for nic in nics
    ]


def _addresses(rows: Sequence[Record], *, pools: bool) -> list[MachineAddress]:
    return [
        MachineAddress(
            ip=row["text"],
            family=network.version,
            interface=f"{guest_address(network)}/{row['guest_prefix_len']}",
            network=str(network),
            gateway=str(row["gateway"]),
            topology=Topology(row["topology"]),
            pool_id=row["pool_id"] if pools else None,
            pool_name=row["pool_name"] if pools else None,
            state=HeldState(row["state"]),
            primary=row["is_primary"],
            changed_at=row["changed_at"],
        )
        for row in rows
        for network in [held_network(row["ip"])]
    ]


def _machine(context: Context[Controller], vm_id: UUID) -> Ref[Machine]:
    return context.services.actors.ref(Machine, str(vm_id))
