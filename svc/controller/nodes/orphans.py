"""Machines that only hosts have, and those that only records have, after the controller was restored from a backup
(docs/backup.md).

Adopting a machine believes the host; discarding it believes the records.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final
from uuid import UUID

import trio
from pydantic import Field

from svc.controller.nodes.models import LocationName
from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.gateway.gateway import NodeUnavailable
from svc_actors.controller.machines.adoption import (
    Adoption,
    KeptMachine,
    adopt_differing,
    adopt_unknown,
    delete_from_host,
    kept_machine,
    observed_state,
    trust_record,
)
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.nodes.node import Node
from svc_actors.controller.nodes.records import get_node
from svc_actors.controller.reconcile.orphans import ORPHANS, OrphanKind, stop_awaiting_report, tell_of_orphans
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_common.errors import ServiceError, conflict, not_found, wrong_field

operations = Operations[Controller]()

_ASKED_AT_ONCE: Final = 16
_SHOWN_WITHIN: Final = 5.0


class Orphan(Model):
    """`kind`: unknown (the host has the machine, but there is no record), missing (there is a record, but the host does
    not have it), differing (the host has other addresses for it, or its creation was interrupted). `id` is the
    machine's. `state` is reported by the host. `disk_gib` (one size for each disk) and `addresses` are those on the
    host; null while its node is offline."""

    id: UUID
    name: str | None
    kind: OrphanKind
    node: LocationName
    state: str | None
    vcpus: int | None
    memory_mib: int | None
    disk_gib: list[int] | None
    addresses: list[str] | None
    project_id: UUID | None


class OrphanAdopt(Request):
    """The first four are for a machine without a record. `project_id` is required; `image_id` if no image has the
    checksum of the one from which it was created; `group_ids` if its host filters its traffic."""

    id: UUID
    project_id: UUID | None = None
    name: Name | None = None
    image_id: UUID | None = None
    group_ids: Annotated[list[UUID], Field(max_length=64)] = Field(default_factory=list)


class OrphanDiscard(Request):
    """`destroy_disks` is for a machine without a record; without it, the host retains the machine's disks."""

    id: UUID
    destroy_disks: bool = False


class OrphanNode(Request):
    id: UUID


@operations.declare(
    "orphan.list",
    "List machines whose host and record differ",
    Route.get("/orphans"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("node", "orphans"),
    columns=("name", "kind", "node=node.name", "state", "vcpus", "memory=memory_mib", "addresses", "id"),
)
async def list_orphans(context: Context[Controller], request: Empty) -> list[Orphan]:
    rows = await context.services.database.fetch(
        f"SELECT found.*, nodes.name AS node_name FROM ({ORPHANS}) found JOIN nodes ON nodes.id = found.node_id"
        " WHERE nodes.deleted_at IS NULL ORDER BY nodes.name, found.name, found.vm_id"
    )
    kept: dict[UUID, KeptMachine] = {}
    at_once = trio.CapacityLimiter(_ASKED_AT_ONCE)

    async def ask(row: Record) -> None:
        async with at_once:
            try:
                kept[row["vm_id"]] = await kept_machine(context.services.gateway, row["node_id"], row["vm_id"])
            except (ServiceError, NodeUnavailable):
                return  # The agent did not answer: the orphan is shown without the host's data.

    with trio.move_on_after(_SHOWN_WITHIN):
        async with trio.open_nursery() as nursery:
            for row in rows:
                if row["kind"] != OrphanKind.MISSING:
                    nursery.start_soon(ask, row)
    return [_orphan(row, kept.get(row["vm_id"])) for row in rows]


@operations.declare(
    "orphan.adopt",
    "Adopt a machine: make its record agree with the host; what the host lacks is rebuilt from its disks",
    Route.post("/orphans/{id}/adopt", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("node", "adopt"),
)
async def adopt_orphan(context: Context[Controller], request: OrphanAdopt) -> None:
    services = context.services
    found = await _find(services.database, request.id)
    if found["kind"] == OrphanKind.MISSING:
        work = partial(trust_record, caller=context.caller, vm_id=request.id)
    else:
        kept = await kept_machine(services.gateway, found["node_id"], request.id)
        state = observed_state(found["state"])
        if found["kind"] == OrphanKind.DIFFERING:
            work = partial(adopt_differing, caller=context.caller, machine=kept, state=state)
        else:
            if request.project_id is None:
                raise wrong_field("project_id", "must be given: the machine has no record that names its project")
            adoption = Adoption(request.project_id, request.name, request.image_id, request.group_ids)
            node_id = found["node_id"]
            work = partial(
                adopt_unknown, caller=context.caller, node_id=node_id, machine=kept, state=state, adoption=adoption
            )

    async def settle(tx: Transaction) -> None:
        await get_node(tx, found["node_id"], lock=True)
        await work(tx)
        await tell_of_orphans(tx, found["node_id"])

    await services.database.transact(settle)


@operations.declare(
    "orphan.discard",
    "Discard a machine: make the host agree with its record; what has no record is deleted from the host",
    Route.post("/orphans/{id}/discard", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("node", "discard"),
    confirm=True,
)
async def discard_orphan(context: Context[Controller], request: OrphanDiscard) -> None:
    services = context.services
    found = await _find(services.database, request.id)
    node_id: UUID = found["node_id"]
    match OrphanKind(found["kind"]):
        case OrphanKind.MISSING:
            machine = services.actors.ref(Machine, str(request.id))
            await machine.ask(Machine.delete, context.caller, destroy_disks=request.destroy_disks)
        case OrphanKind.DIFFERING:

            async def trust(tx: Transaction) -> None:
                await get_node(tx, node_id, lock=True)
                await trust_record(tx, context.caller, request.id)
                await network_changed(tx, [request.id])
                await tell_of_orphans(tx, node_id)

            await services.database.transact(trust)
        case OrphanKind.UNKNOWN:
            await _delete_from_host(context, node_id, request)


@operations.declare(
    "node.write_off",
    "Write off a node from before a restore, so that addresses are given out without its report",
    Route.post("/nodes/{id}/write-off", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    confirm=True,
)
async def write_off_node(context: Context[Controller], request: OrphanNode) -> None:

    async def work(tx: Transaction) -> None:
        node = await get_node(tx, request.id, lock=True)
        if not await stop_awaiting_report(tx, request.id):
            raise conflict(
                f"Node {node.name} is not awaited: no addresses are held back for its report. Nothing was changed."
            )
        await audit.record(tx, context.caller, node.target)
        await tell_of_orphans(tx, request.id)

    await context.services.database.transact(work)


async def _delete_from_host(context: Context[Controller], node_id: UUID, request: OrphanDiscard) -> None:
    """Delete the machine from its host. The deletion is recorded before the host gets the order, since an order cannot
    be undone."""
    services = context.services

    async def work(tx: Transaction) -> None:
        target = Target("vm", request.id, str(request.id))
        await audit.record(
            tx, context.caller, target, {"node_id": str(node_id), "destroy_disks": request.destroy_disks}
        )

    await services.database.transact(work)
    await delete_from_host(services.gateway, node_id, request.id, destroy_disks=request.destroy_disks)
    await services.actors.ref(Node, str(node_id)).ask(Node.machine_removed, request.id)


async def _find(queryable: Queryable, vm_id: UUID) -> Record:
    row = await queryable.fetchrow(f"SELECT * FROM ({ORPHANS}) found WHERE vm_id = $1 ORDER BY node_id LIMIT 1", vm_id)
    if row is None:
        raise not_found("The host and the record of this machine agree, or neither has it.")
    return row


def _orphan(row: Record, kept: KeptMachine | None) -> Orphan:
    return Orphan(
        id=row["vm_id"],
        name=row["name"] if row["project_id"] is not None or kept is None else kept.name,
        kind=OrphanKind(row["kind"]),
        node=LocationName(id=row["node_id"], name=row["node_name"]),
        state=row["state"],
        vcpus=row["vcpus"],
        memory_mib=row["memory_mib"],
        disk_gib=[disk.size_gib for disk in kept.disks] if kept else None,
        addresses=[str(each.network) for nic in kept.network.nics for each in nic.addresses] if kept else None,
        project_id=row["project_id"],
    )
