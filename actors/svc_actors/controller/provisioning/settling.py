"""Making a service's machine what the service's state says.

Level-triggered: what is to be done is read from the records each time, so a crash at any point forgets nothing, and
whatever is ordered here is decided by the Machine actor under the lock of the machine's row, so nothing is done twice.

| state | its machine |
|---|---|
| provisioning | is being built: the end of that ends the state |
| provisioning_failed | is removed with all that was made of it |
| suspended, by power_off | is shut down; where its guest does not obey, switched off |
| active, after a suspension that switched it off | is started |
| terminated | is deleted, also where its owner had protected it |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.records import Marks
from svc_actors.controller.machines.states import MachineStatus, Order
from svc_actors.controller.provisioning.records import (
    ServiceRow,
    get_service,
    lock_service,
    provisioned,
    write_settled,
    write_tried,
)
from svc_actors.controller.provisioning.states import ServiceState, SuspendMode
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, Queryable, Transaction, service_itself

_GONE: Final = "The machine was removed before it was created."


@dataclass(frozen=True)
class _MachineNow:
    """`busy`: a task is under way. `agrees`: its host has its network as it is recorded. `ignored`: it was told to shut
    down since the suspension, and did not. `kept`: it was to be deleted before, and was not."""

    id: UUID
    status: MachineStatus
    reason: str | None
    built: bool
    busy: bool
    agrees: bool
    ignored: bool
    kept: bool
    protected: bool


async def settle(database: Database, actors: ActorSystem, service_id: UUID) -> None:
    """One step towards what the service's state says. Raises `DomainError` where the machine cannot take it now."""
    service = await get_service(database, service_id)
    if service.settled:
        return
    machine = await _machine(database, service)
    if service.state is ServiceState.PROVISIONING:
        await _conclude(database, service_id)
    elif machine is None:
        await _write_settled(database, service)
    elif not machine.busy and (order := _order(service, machine)) is not None:
        await _ask(database, actors, service, machine, order)
    elif not machine.busy and machine.agrees:
        await _write_settled(database, service)


def _order(service: ServiceRow, machine: _MachineNow) -> Order | None:
    """What the machine is told; None where its power is as it shall be."""
    match service.state:
        case ServiceState.PROVISIONING_FAILED | ServiceState.TERMINATED:
            return Order.DELETE
        case ServiceState.SUSPENDED if service.suspend_mode is SuspendMode.POWER_OFF:
            if machine.status is MachineStatus.RUNNING:
                return Order.FORCE_STOP if machine.ignored else Order.SHUTDOWN
        case ServiceState.ACTIVE if service.resume and machine.status is MachineStatus.STOPPED:
            return Order.START
    return None


async def _ask(
    database: Database, actors: ActorSystem, service: ServiceRow, machine: _MachineNow, order: Order
) -> None:
    """What the machine refuses is asked again later, and so is a deletion that has come to nothing before."""
    caller, actor = service_itself("service.settle"), actors.ref(Machine, str(machine.id))
    try:
        if order is Order.DELETE:
            if machine.protected:
                await actor.ask(Machine.update, caller, Changes(marks=Marks(protected=False)))
            destroy = service.destroy_disks or service.state is ServiceState.PROVISIONING_FAILED
            await actor.ask(Machine.delete, caller, destroy_disks=destroy)
        else:
            await actor.ask(Machine.order, caller, order)
    except DomainError:
        await write_tried(database, service.id)
        raise
    if machine.kept:
        await write_tried(database, service.id)


async def _conclude(database: Database, service_id: UUID) -> None:
    """End provisioning, if the machine is built or will never be."""

    async def work(tx: Transaction) -> None:
        service = await lock_service(tx, service_id)
        if service.state is not ServiceState.PROVISIONING:
            return
        caller, machine = service_itself("service.settle"), await _machine(tx, service)
        if machine is None:
            await provisioned(tx, caller, service, _GONE)
        elif not machine.busy and machine.status is not MachineStatus.CREATING:
            await provisioned(tx, caller, service, None if machine.built else machine.reason or _GONE)

    await database.transact(work)


async def _write_settled(database: Database, seen: ServiceRow) -> None:
    """Unless the service was changed since it was looked at: then it is looked at again."""

    async def work(tx: Transaction) -> None:
        if await lock_service(tx, seen.id) == seen:
            await write_settled(tx, seen)

    await database.transact(work)


async def _machine(queryable: Queryable, service: ServiceRow) -> _MachineNow | None:
    """None where there is none any more."""
    row = await queryable.fetchrow(
        """SELECT vms.id, vms.status, status_reason AS reason, built_at IS NOT NULL AS built,
                  vms.status <> 'running' OR net_applied >= net_wanted AS agrees,
                  EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                                              AND tasks.status IN ('queued', 'running')) AS busy,
                  EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id AND op = 'vm.shutdown'
                                              AND tasks.status <> 'succeeded' AND tasks.created_at > $2) AS ignored,
                  EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                                              AND op = 'vm.delete') AS kept,
                  protected
           FROM vms WHERE id = $1 AND deleted_at IS NULL""",
        service.vm_id,
        service.suspended_at,
    )
    return None if row is None else _MachineNow(**dict(row) | {"status": MachineStatus(row["status"])})
