"""Orders about volumes, and the effect of their tasks' outcomes.

The task of a free volume belongs to the volume. The task of a volume that is attached, or is being attached, belongs to
its machine, which has one task at a time, so that nothing else changes the machine's disks. So the Machine actor calls
`machine_task`, with the machine locked and idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.controller.tasks.runner import Ending, ResourceKind, Task, create_task
from svc_actors.controller.volumes.records import (
    NewVolume,
    VolumeRow,
    accept_attachment,
    accept_growth,
    accept_order,
    insert_volume,
    lock_volume,
    record_finding,
    require_node,
    write_size,
)
from svc_actors.controller.volumes.states import CREATE, Finding, VolumeOrder
from svc_actors.store import Caller, Transaction, audit
from svc_common.errors import conflict

VOLUME: Final = "volume_id"
"""The parameter of the tasks that names the volume."""
BEFORE: Final = "before_gib"


@dataclass(frozen=True)
class Create:
    """Create a volume and attach it to the ordering machine."""

    new: NewVolume
    created_by: UUID | None
    op: str = CREATE


@dataclass(frozen=True)
class Attach:
    volume_id: UUID
    op: str = VolumeOrder.ATTACH.op


@dataclass(frozen=True)
class Detach:
    volume_id: UUID
    op: str = VolumeOrder.DETACH.op


@dataclass(frozen=True)
class Grow:
    volume_id: UUID
    size_gib: int
    bounded: bool
    op: str = VolumeOrder.GROW.op


MachineOrder = Create | Attach | Detach | Grow


async def machine_task(
    tx: Transaction, order: MachineOrder, *, vm_id: UUID, node_id: UUID | None
) -> tuple[VolumeRow, dict[str, object]]:
    """Decide an order about a volume; returns the volume and the task's parameters. Raises capacity, conflict,
    not_found, not_ready."""
    if isinstance(order, Create):
        volume = await insert_volume(tx, order.new, order.created_by, vm_id=vm_id)
        return volume, _parameters(volume)
    volume = await lock_volume(tx, order.volume_id)
    if isinstance(order, Attach):
        volume = await accept_attachment(tx, volume, vm_id=vm_id, node_id=node_id)
        return volume, _parameters(volume)
    if volume.vm_id != vm_id:
        raise conflict("The volume has been taken from the machine meanwhile; nothing was changed.")
    if isinstance(order, Detach):
        return await accept_order(tx, volume, VolumeOrder.DETACH), _parameters(volume)
    grown = await accept_growth(tx, volume, order.size_gib, bounded=order.bounded)
    return grown, _parameters(grown) | {BEFORE: volume.size_gib}


async def create_free(tx: Transaction, caller: Caller, new: NewVolume) -> tuple[UUID, Task]:
    volume = await insert_volume(tx, new, caller.actor_id)
    return volume.id, await _own_task(tx, caller, volume, CREATE, _parameters(volume))


async def grow_free(tx: Transaction, caller: Caller, order: Grow) -> Task:
    volume = await lock_volume(tx, order.volume_id)
    await require_node(tx, volume.node_id)
    if volume.vm_id is not None:
        raise conflict("The volume has been attached meanwhile; nothing was changed.", hint="Try again.")
    grown = await accept_growth(tx, volume, order.size_gib, bounded=order.bounded)
    return await _own_task(tx, caller, grown, order.op, _parameters(grown) | {BEFORE: volume.size_gib})


async def delete(tx: Transaction, caller: Caller, volume_id: UUID) -> Task:
    """Accepted even while the volume's node is away: the task waits until it is back or declared lost."""
    volume = await accept_order(tx, await lock_volume(tx, volume_id), VolumeOrder.DELETE)
    return await _own_task(tx, caller, volume, VolumeOrder.DELETE.op, _parameters(volume))


async def record_end(tx: Transaction, task: Task, ending: Ending, *, known: bool = True) -> None:
    """Record the effect of a task's end on the volume. Without `known` the node's outcome is unknown: the volume is
    recorded at the place at which it would do harm to overlook it, until an inventory reports its place."""
    volume = await lock_volume(tx, UUID(task.parameters[VOLUME]))
    done = ending.succeeded
    match task.op:
        case "volume.create":
            place = volume.place if done else Finding.LOST
        case "volume.attach":
            place = Finding.ATTACHED if done or not known else Finding.FREE
        case "volume.detach":
            place = Finding.FREE if done else Finding.ATTACHED
        case "volume.delete":
            place = Finding.GONE if done else Finding.FREE if known else Finding.LOST
        case _:
            place = volume.place
            if known and not done:
                await write_size(tx, volume.id, task.parameters[BEFORE])
    await record_finding(tx, volume, place, error=ending.message)


def _parameters(volume: VolumeRow) -> dict[str, object]:
    return {
        VOLUME: str(volume.id),
        "name": volume.name,
        "size_gib": volume.size_gib,
        "index": volume.disk_index,
        "kept": volume.kept_name,
    }


async def _own_task(tx: Transaction, caller: Caller, volume: VolumeRow, op: str, parameters: dict[str, object]) -> Task:
    task = await create_task(
        tx,
        caller,
        op=op,
        resource_kind=ResourceKind.VOLUME,
        resource_id=volume.id,
        resource_name=volume.name,
        node_id=volume.node_id,
        project_id=volume.project_id,
        parameters=parameters,
        timeout=None,
    )
    told = {"task_id": str(task.id), "size_gib": volume.size_gib, "node_id": str(volume.node_id)}
    await audit.record(tx, caller, volume.target, told)
    return task
