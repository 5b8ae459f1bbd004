"""Bring a service's machine in line with the state of the service.

Level-triggered: each step reads the records afresh, so a crash at any point forgets nothing. The Machine actor decides
every order given here under the lock of the machine's row, so nothing is done twice.

| state | its machine |
|---|---|
| provisioning | is being built; the state ends when the build does |
| provisioning_failed | is removed with its disks |
| suspended, by power_off | is shut down; if the guest does not obey, switched off |
| active, after a suspension that switched it off | is started |
| terminated | is deleted, even if its owner had protected it |

Rejected: ordering the machine's change in the transaction that changes the service. If the machine's node is away, the
order would be refused, and the billing system's call with it. A billing system must not lose an order because of an
offline node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.records import MachineSettings
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

SETTLE_SECONDS: Final = 2.0
"""How often `keep_repeating` calls `settle_due`, once per process."""
_AT_ONCE: Final = 16
"""Services processed concurrently; each takes a transaction or an order to a Machine actor."""
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

# A service whose machine could not take its order (its node is away, for example) is due again after 15 seconds.
_DUE: Final = """
SELECT id FROM services
WHERE NOT settled AND (tried_at IS NULL OR tried_at NOT BETWEEN now() - interval '15 seconds' AND now()) ORDER BY id"""


@dataclass(frozen=True)
class _MachineNow:
    """`busy`: a task is open. `agrees`: its host has applied the recorded network. `ignored`: a shutdown ordered since
    the suspension did not succeed. `kept`: a deletion was ordered before; if the machine is not `busy`, that deletion
    has failed."""

    id: UUID
    status: MachineStatus
    reason: str | None
    built: bool
    busy: bool
    agrees: bool
    ignored: bool
    kept: bool
    protected: bool


async def settle_due(database: Database, actors: ActorSystem) -> None:
    """Take one step for every service that is not settled. A service that cannot be settled now delays no other."""
    at_once = trio.CapacityLimiter(_AT_ONCE)
    async with trio.open_nursery() as nursery:
        for row in await database.fetch(_DUE):
            nursery.start_soon(_settle, database, actors, row["id"], at_once)


async def _settle(database: Database, actors: ActorSystem, service_id: UUID, at_once: trio.CapacityLimiter) -> None:
    async with at_once:
        try:
            await settle(database, actors, service_id)
        except DomainError as error:
            log.warning("service_watch.not_settled", service_id=str(service_id), error=str(error))


async def settle(database: Database, actors: ActorSystem, service_id: UUID) -> None:
    """Take one step towards the service's state. Raises `DomainError` if the machine refuses the order now."""
    # Both are read without locks. A change in between does no harm: the Machine actor judges orders under its own lock,
    # and `_write_settled` writes only if the service is still as it was read here.
    service = await get_service(database, service_id)
    if service.settled:
        return
    machine = await _machine(database, service)
    if service.state is ServiceState.PROVISIONING:
        await _conclude(database, service_id)
    elif machine is None:
        # The machine is deleted: there is nothing to bring into the service's state, whatever that is.
        await _write_settled(database, service)
    elif not machine.busy and (order := _order(service, machine)) is not None:
        await _ask(database, actors, service, machine, order)
    elif not machine.busy and machine.agrees:
        # The machine's power agrees with the state. After a suspension by network_isolate, the service is settled only
        # once the host has applied the network, too: `agrees` includes this.
        await _write_settled(database, service)


def _order(service: ServiceRow, machine: _MachineNow) -> Order | None:
    """The order to give; None if the machine's power agrees with the service's state."""
    match service.state:
        case ServiceState.PROVISIONING_FAILED | ServiceState.TERMINATED:
            return Order.DELETE
        case ServiceState.SUSPENDED if service.suspend_mode is SuspendMode.POWER_OFF:
            if machine.status is MachineStatus.RUNNING:
                # If the guest has ignored the shutdown, the second order forces the machine off: otherwise it would not
                # be suspended.
                return Order.FORCE_STOP if machine.ignored else Order.SHUTDOWN
        case ServiceState.ACTIVE if service.resume and machine.status is MachineStatus.STOPPED:
            return Order.START
    return None


async def _ask(
    database: Database, actors: ActorSystem, service: ServiceRow, machine: _MachineNow, order: Order
) -> None:
    """Give the order. If the machine refuses it, the attempt is recorded, so that the order is repeated after a pause.
    A deletion after a failed deletion is recorded as an attempt, too."""
    caller, actor = service_itself("service.settle"), actors.ref(Machine, str(machine.id))
    try:
        if order is Order.DELETE:
            if machine.protected:
                await actor.ask(Machine.update, caller, Changes(settings=MachineSettings(protected=False)))
            # The disk of a failed build holds no data of the customer: a retry orders another machine.
            destroy = service.destroy_disks or service.state is ServiceState.PROVISIONING_FAILED
            await actor.ask(Machine.delete, caller, destroy_disks=destroy)
        else:
            await actor.ask(Machine.order, caller, order)
    except DomainError:
        await write_tried(database, service.id)
        raise
    if machine.kept:
        # Here the machine accepts the order each time, and the order's task fails each time. Without the pause there
        # would be a task every two seconds.
        await write_tried(database, service.id)


async def _conclude(database: Database, service_id: UUID) -> None:
    """End provisioning if the machine is built, or if it can no longer be built."""

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
    """Write that the service is settled, unless it was changed since it was read; then the next round reads it
    again."""

    async def work(tx: Transaction) -> None:
        if await lock_service(tx, seen.id) == seen:
            await write_settled(tx, seen)

    await database.transact(work)


async def _machine(queryable: Queryable, service: ServiceRow) -> _MachineNow | None:
    """The service's machine; None if it is deleted."""
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
