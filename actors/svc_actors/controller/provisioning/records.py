"""Records of services: decided under the lock of their row, each change with an event for the billing system.

Invariants:
- every change of state is a move of the table in `states`, and is written with its event and its audit row;
- a service and its machine are created in one transaction, so there is no order without a machine, and no machine of a
  refused order;
- (integration, external_ref) is unique, whatever idempotency keys orders have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

from svc_actors.controller.machines.records import announce_machine
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.provisioning.states import (
    IllegalMove,
    Outcome,
    ServiceMove,
    ServiceOrder,
    ServiceState,
    SuspendMode,
    move,
    participle_of,
)
from svc_actors.store import Caller, Queryable, Record, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import ServiceError, conflict, not_found, not_ready


@dataclass(frozen=True)
class NewService:
    """`machine_order` is the order of the machine, without secrets; a retry orders it again. `sealed_user_data` has
    those of the order's secrets that a retry needs."""

    integration: str
    external_ref: str
    customer_id: UUID
    project_id: UUID
    machine_order: Mapping[str, Any]
    sealed_user_data: bytes | None
    id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True)
class ServiceRow:
    id: UUID
    integration: str
    external_ref: str
    state: ServiceState
    state_reason: str | None
    settled: bool
    customer_id: UUID | None
    project_id: UUID
    vm_id: UUID | None
    machine_order: Mapping[str, Any]
    sealed_user_data: bytes | None = field(repr=False)
    suspend_mode: SuspendMode | None
    suspended_at: datetime | None
    resume: bool
    destroy_disks: bool

    @property
    def target(self) -> Target:
        return Target("service", self.id, f"{self.integration}/{self.external_ref}", self.project_id)


_CHANGES: Final = {
    ServiceOrder.CHANGE_PLAN: "The machine is to be moved to another plan; its task says how that went.",
    ServiceOrder.RESIZE: "The machine is to be resized; its task says how that went.",
    ServiceOrder.REINSTALL: "The machine is to be reinstalled; its task says how that went.",
}

_COLUMNS: Final = ", ".join(ServiceRow.__dataclass_fields__)


async def add_service(tx: Transaction, caller: Caller, new: NewService, vm_id: UUID) -> None:
    """Create a service, whose machine the same transaction creates. Raises conflict if the billing system's reference
    already has a service."""
    try:
        await tx.execute(
            """INSERT INTO services (id, integration, external_ref, state, customer_id, project_id, vm_id,
                                     machine_order, sealed_user_data)
               VALUES ($1, $2, $3, 'provisioning', $4, $5, $6, $7, $8)""",
            new.id,
            new.integration,
            new.external_ref,
            new.customer_id,
            new.project_id,
            vm_id,
            dict(new.machine_order),
            new.sealed_user_data,
        )
    except UniqueViolationError:
        raise reference_taken(new.integration, new.external_ref) from None
    service = await lock_service(tx, new.id)
    await _note(tx, caller, service, "ordered", "The machine is being created.", {"vm_id": str(vm_id)})


async def add_linked(tx: Transaction, caller: Caller, integration: str, external_ref: str, vm_id: UUID) -> UUID:
    """Create a service for an existing machine, whose row is locked. The service's customer is the only customer of the
    machine's project; if the project has several, the service has none, since nothing says which one. Raises conflict
    if the reference or the machine has a service."""
    try:
        service_id: UUID = await tx.fetchval(
            """INSERT INTO services (integration, external_ref, state, settled, customer_id, project_id, vm_id,
                                     machine_order)
               SELECT $1, $2, 'active', true,
                      (SELECT min(user_id::text)::uuid FROM project_members JOIN users ON users.id = user_id
                       WHERE project_members.project_id = vms.project_id AND users.role = 'customer'
                       HAVING count(*) = 1),
                      project_id, id, json_build_object('name', name, 'hostname', hostname, 'project_id', project_id,
                                                        'plan_id', plan_id, 'image_id', image_id, 'password', true)
               FROM vms WHERE id = $3 RETURNING id""",
            integration,
            external_ref,
            vm_id,
        )
    except UniqueViolationError:
        raise reference_taken(integration, external_ref) from None
    service = await lock_service(tx, service_id)
    await _note(tx, caller, service, "adopted", "The machine already existed.", {"vm_id": str(vm_id)})
    return service_id


def reference_taken(integration: str, external_ref: str) -> ServiceError:
    return conflict(
        f"{integration} already has a service for {external_ref}; nothing was created.",
        hint="Look it up by its reference. A service that failed is retried, not ordered again.",
    )


async def find_service(queryable: Queryable, integration: str, external_ref: str) -> ServiceRow | None:
    row = await queryable.fetchrow(
        f"SELECT {_COLUMNS} FROM services WHERE integration = $1 AND external_ref = $2", integration, external_ref
    )
    return None if row is None else _service(row)


async def get_service(queryable: Queryable, service_id: UUID) -> ServiceRow:
    """The service's row. Raises not_found."""
    row = await queryable.fetchrow(f"SELECT {_COLUMNS} FROM services WHERE id = $1", service_id)
    if row is None:
        raise not_found("There is no such service.")
    return _service(row)


async def lock_service(tx: Transaction, service_id: UUID) -> ServiceRow:
    """The service, locked to the end of the transaction. Raises not_found."""
    row = await tx.fetchrow(f"SELECT {_COLUMNS} FROM services WHERE id = $1 FOR NO KEY UPDATE", service_id)
    if row is None:
        raise not_found("There is no such service.")
    return _service(row)


async def retry(tx: Transaction, caller: Caller, service_id: UUID, vm_id: UUID) -> None:
    """Give a failed service another machine, which the same transaction creates."""
    service = await lock_service(tx, service_id)
    moved(service, ServiceOrder.RETRY)
    if not service.settled:
        raise not_ready("Parts of the service's machine are still being removed.", hint="Try again in a moment.")
    await tx.execute(
        """UPDATE services SET state = 'provisioning', state_reason = NULL, settled = false, vm_id = $2,
                               changed_at = now() WHERE id = $1""",
        service.id,
        vm_id,
    )
    await _note(tx, caller, service, "retried", "Another machine is being created.", {"vm_id": str(vm_id)})


async def suspend(tx: Transaction, caller: Caller, service_id: UUID, mode: SuspendMode, reason: str | None) -> None:
    """Changes nothing if the service is already suspended in this mode. Raises conflict if it is in the other mode."""
    service = await lock_service(tx, service_id)
    after = moved(service, ServiceOrder.SUSPEND)
    if service.state is after:
        if service.suspend_mode is not mode:
            assert service.suspend_mode is not None
            raise conflict(
                f"The service is suspended by {service.suspend_mode.value} already; nothing was changed.",
                hint="Unsuspend it first.",
            )
        return
    await tx.execute(
        """UPDATE services
           SET state = 'suspended', state_reason = $3, suspend_mode = $2, suspended_at = now(), settled = false,
               tried_at = NULL, changed_at = now(),
               -- Or it is about to be started, after a suspension before.
               resume = resume OR $2 = 'power_off' AND EXISTS (
                   SELECT FROM vms WHERE vms.id = services.vm_id AND desired_power = 'running')
           WHERE id = $1""",
        service.id,
        mode.value,
        reason,
    )
    await _follow_network(tx, service, mode)
    message = {
        SuspendMode.POWER_OFF: "The machine is switched off.",
        SuspendMode.NETWORK_ISOLATE: "The machine keeps running without a network.",
    }[mode]
    await _note(tx, caller, service, "suspended", message, {"mode": mode.value, "reason": reason})


async def unsuspend(tx: Transaction, *, caller: Caller, service_id: UUID) -> None:
    """Reverse the suspension in the mode in which it was ordered, even if the setting has changed since. Changes
    nothing if the service is active."""
    service = await lock_service(tx, service_id)
    after = moved(service, ServiceOrder.UNSUSPEND)
    if service.state is after:
        return
    await tx.execute(
        """UPDATE services SET state = 'active', state_reason = NULL, suspend_mode = NULL, suspended_at = NULL,
                               settled = false, tried_at = NULL, changed_at = now() WHERE id = $1""",
        service.id,
    )
    await _follow_network(tx, service, service.suspend_mode)
    message = "The machine is started." if service.resume else "The machine is as before the suspension."
    details = {"mode": service.suspend_mode.value if service.suspend_mode else None}
    await _note(tx, caller, service, "unsuspended", message, details)


async def terminate(tx: Transaction, *, caller: Caller, service_id: UUID, destroy_disks: bool) -> None:
    """End the service: its machine is deleted. Changes nothing if it is already terminated."""
    service = await lock_service(tx, service_id)
    if service.state is moved(service, ServiceOrder.TERMINATE):
        return
    await tx.execute(
        """UPDATE services SET state = 'terminated', state_reason = NULL, suspend_mode = NULL, suspended_at = NULL,
                               resume = false, destroy_disks = $2, terminated_at = now(), settled = false,
                               tried_at = NULL, sealed_user_data = NULL, changed_at = now() WHERE id = $1""",
        service.id,
        destroy_disks,
    )
    message = "The machine and its disks are removed." if destroy_disks else "The machine is removed, its disks kept."
    await _note(tx, caller, service, "terminated", message, {"destroy_disks": destroy_disks})


async def change_machine(tx: Transaction, *, caller: Caller, service_id: UUID, order: ServiceOrder) -> None:
    """Write the event of an order that changes the service's machine but not its state. It is the first statement of
    the transaction that decides the order."""
    service = await lock_service(tx, service_id)
    moved(service, order)
    await _note(tx, caller, service, order.value, _CHANGES[order], {})


async def provisioned(tx: Transaction, caller: Caller, service: ServiceRow, failure: str | None) -> None:
    """Record the end of provisioning; `service` is locked. `failure`: why there is no machine."""
    after = move(service.state, Outcome.BUILT if failure is None else Outcome.FAILED)
    await tx.execute(
        """UPDATE services SET state = $2, state_reason = $3, settled = $4, changed_at = now(),
               sealed_user_data = CASE WHEN $3::text IS NOT NULL THEN sealed_user_data END
           WHERE id = $1""",
        service.id,
        after.value,
        failure,
        failure is None,
    )
    await _note(tx, caller, service, after.value, failure or "The machine is created.", {})


async def write_settled(tx: Transaction, service: ServiceRow) -> None:
    """Record that the machine matches the service's state; `service` is locked."""
    await tx.execute(
        """UPDATE services SET settled = true, tried_at = NULL, resume = resume AND state = 'suspended'
           WHERE id = $1""",
        service.id,
    )


async def write_tried(queryable: Queryable, service_id: UUID) -> None:
    await queryable.execute("UPDATE services SET tried_at = now() WHERE id = $1", service_id)


async def _note(
    tx: Transaction, caller: Caller, service: ServiceRow, kind: str, message: str, details: Mapping[str, Any]
) -> None:
    await tx.execute(
        """INSERT INTO service_events (service_id, kind, state, actor, message)
           SELECT id, $2, state, $3, $4 FROM services WHERE id = $1""",
        service.id,
        kind,
        caller.actor,
        message,
    )
    await audit.record(tx, caller, service.target, details)


async def _follow_network(tx: Transaction, service: ServiceRow, mode: SuspendMode | None) -> None:
    """Apply the machine's network again if the suspension isolates it."""
    if mode is SuspendMode.NETWORK_ISOLATE and service.vm_id is not None:
        await network_changed(tx, [service.vm_id])
        await announce_machine(tx, service.vm_id)


def moved(service: ServiceRow, event: ServiceMove) -> ServiceState:
    """The state after `event`. Raises conflict if the table has no such move."""
    try:
        return move(service.state, event)
    except IllegalMove:
        assert isinstance(event, ServiceOrder)
        raise conflict(
            f"The service is {service.state.value} and cannot be {participle_of(event)}; nothing was changed.",
            details={"state": service.state.value},
        ) from None


def _service(row: Record) -> ServiceRow:
    values = dict(row)
    mode = values["suspend_mode"]
    return ServiceRow(
        **values
        | {"state": ServiceState(values["state"]), "suspend_mode": SuspendMode(mode) if mode is not None else None}
    )
