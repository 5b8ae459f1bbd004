"""Checks before a machine accepts an order, each with its refusal. The caller has locked the row."""

from __future__ import annotations

from uuid import UUID

from svc_actors.controller.machines.records import KEPT_OFF, MachineRow
from svc_actors.controller.machines.states import (
    UNKNOWN_WHILE_AWAY,
    IllegalMove,
    MachineStatus,
    Order,
    move,
    refusal_text,
)
from svc_actors.controller.tasks.runner import ResourceKind, Task, open_task_of
from svc_actors.store import Transaction
from svc_common.errors import ServiceError, conflict, not_ready, unavailable


def moved(vm: MachineRow, order: Order) -> MachineStatus:
    """The status that the order leads to. Raises conflict if the table has no such move."""
    if order is Order.START and vm.status is MachineStatus.FAILED:
        _require_built(vm)
    try:
        return move(vm.status, order)
    except IllegalMove:
        raise conflict(
            f"The machine is {vm.status.value} and cannot be {refusal_text(order)}.",
            details={"status": vm.status.value},
        ) from None


def _require_built(vm: MachineRow) -> None:
    """Raise conflict for a failed machine that was never built: a start can only define a machine again that was built
    once. Raise unavailable if its node is offline."""
    if vm.built_at is None:
        raise conflict(
            "The machine was never built and cannot be started.",
            hint="Delete it, and create it again.",
            details={"status": vm.status.value},
        )
    if vm.node_state != "online":
        raise unavailable(
            "The machine's node is not online; nothing was changed.", hint="Try again once its node is back."
        )


def require_known(vm: MachineRow) -> None:
    """Raises unavailable, for any order, if the machine is shown as `unknown`. Raises conflict if its node is lost."""
    require_confirmed(vm)
    _require_node_not_lost(vm)
    if vm.node_id is not None and vm.node_state != "online" and vm.status in UNKNOWN_WHILE_AWAY:
        raise unavailable(
            "The machine's node is not online, so the state of the machine is unknown; nothing was changed.",
            hint="Try again once the machine is no longer shown as unknown. Until then it can only be deleted.",
        )


def _require_node_not_lost(vm: MachineRow) -> None:
    if vm.node_state == "lost":
        raise conflict(
            f"The machine was on node {vm.node_name}, which is lost; nothing was changed.",
            hint="It can only be deleted.",
        )


def require_unprotected(vm: MachineRow, order: Order) -> None:
    """Raises conflict for a machine that its owner has protected from orders that destroy its disks."""
    if vm.protected:
        raise conflict(
            f"The machine is protected and cannot be {refusal_text(order)}; nothing was changed.",
            hint="Remove the protection first.",
        )


def require_not_in_rescue(vm: MachineRow, what: str) -> None:
    """Raises conflict for a machine in rescue, whose disks are being repaired by hand; `what` names the refused
    order."""
    if vm.rescue_since is not None:
        raise conflict(
            f"The machine is in rescue and cannot be {what}; nothing was changed.",
            hint="End the rescue first.",
        )


async def require_not_suspended(tx: Transaction, vm: MachineRow) -> None:
    """Raises conflict for a machine whose service keeps it switched off."""
    if await tx.fetchval(f"SELECT {KEPT_OFF} FROM vms WHERE id = $1", vm.id):
        raise conflict(
            "The service that the machine belongs to is suspended, failed or terminated, so the machine stays off.",
            hint="Unsuspend the service in the billing system that sold it; that starts the machine as well.",
        )


def require_confirmed(vm: MachineRow) -> None:
    """Raises unavailable if the controller was restored and the machine's host has not confirmed its record yet."""
    if vm.unconfirmed:
        raise unavailable(
            "The controller was restored from a backup, or its database lost changes, and the machine's node has not "
            "reported the machine since; nothing was changed.",
            hint="Try again once the node has reported. For a machine that no node reports, see `svc node "
            "orphans` (administrators).",
        )


async def require_idle(tx: Transaction, vm_id: UUID) -> None:
    """Raises not_ready while a task is under way."""
    under_way = await open_task_of(tx, ResourceKind.VM, vm_id)
    if under_way is not None:
        raise busy(under_way)


def busy(task: Task) -> ServiceError:
    return not_ready(
        f"The machine is busy with {task.op}.",
        hint="Wait for that task, or cancel it.",
        details={"task_id": str(task.id), "op": task.op},
    )
