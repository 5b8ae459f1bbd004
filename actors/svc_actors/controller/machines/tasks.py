"""A machine's task. A machine has one task at a time: an order is refused while one is under way, or supersedes it.

All functions run in the transaction of an order, which has locked the machine's row.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.controller.backups.records import FORGET
from svc_actors.controller.machines import moving, rescue, snapshots
from svc_actors.controller.machines.admission import busy, require_idle, require_known
from svc_actors.controller.machines.outcomes import GENERATION, WINDOWS
from svc_actors.controller.machines.records import MachineRow, lock_machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.tasks.run import task_seconds
from svc_actors.controller.tasks.runner import (
    Ending,
    ResourceKind,
    Task,
    TaskStatus,
    create_task,
    end_task,
    open_task_of,
)
from svc_actors.controller.volumes import states as volume_states
from svc_actors.store import Caller, Transaction, audit
from svc_nodeagent.protocol import FACTS

_WITHOUT_DEADLINE: Final = frozenset({Order.DELETE.op, Order.REINSTALL.op}) | volume_states.OPS
"""Tasks that destroy data once they have started, or that attach a disk. These have no deadline: only the host's answer
ends them."""

_UNTOLD: Final = frozenset({GENERATION, FORGET, "ssh_keys", "order", WINDOWS, rescue.SUPERSEDED, "kept"})
"""Parameters of tasks that are left out of the audit."""


async def idle(tx: Transaction, vm_id: UUID) -> MachineRow:
    """Lock the machine and return it; raises unless its state is known and no task is under way."""
    vm = await lock_machine(tx, vm_id)
    require_known(vm)
    await require_idle(tx, vm_id)
    await moving.require_released(tx, vm)
    return vm


async def supersede(tx: Transaction, caller: Caller, vm_id: UUID, order: Order) -> Task | None:
    """End the task under way if the order supersedes it, and return it. Raises not_ready if it does not."""
    under_way = await open_task_of(tx, ResourceKind.VM, vm_id)
    if under_way is None:
        return None
    if order is not Order.FORCE_STOP or not FACTS[under_way.op].yields_to_force_stop:
        raise busy(under_way)
    words = f"Superseded: {caller.actor} ordered the machine to be forced to stop."
    ending = Ending(TaskStatus.CANCELLED, words)
    await end_task(tx, under_way.id, ending)
    if under_way.op in snapshots.OPS:
        await snapshots.record_end(tx, under_way, ending)
    return under_way


async def new_task(
    tx: Transaction,
    caller: Caller,
    vm: MachineRow,
    op: str,
    parameters: dict[str, object],
    node_id: UUID | None = None,
) -> Task:
    """`node_id`: for a task on a node other than the machine's."""
    task = await create_task(
        tx,
        caller,
        op=op,
        resource_kind=ResourceKind.VM,
        resource_id=vm.id,
        resource_name=vm.name,
        node_id=node_id or vm.node_id,
        project_id=vm.project_id,
        parameters=parameters,
        timeout=None if op in _WITHOUT_DEADLINE else task_seconds(op),
    )
    details = {name: value for name, value in parameters.items() if name not in _UNTOLD}
    await audit.record(tx, caller, vm.target, {"task_id": str(task.id), **details})
    return task
