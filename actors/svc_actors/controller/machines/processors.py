"""The processor of a machine's guest: decides about changing it, and records when the guest has the new one.

The host's definition has the new processor at once, the guest from its next start: `vms.cpu_mode` is the guest's
processor, `cpu_next_mode` the one in the definition that waits for this start. Only a start of QEMU applies it; a reset
does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from svc_actors.controller.machines.admission import moved, require_not_in_rescue, require_not_suspended
from svc_actors.controller.machines.records import MachineRow, write_processor
from svc_actors.controller.machines.states import MachineStatus, Order, refusal_text
from svc_actors.controller.tasks.runner import Task
from svc_actors.store import Transaction
from svc_common.errors import invalid
from svc_nodeagent.protocol import CpuMode as CpuMode
from svc_nodeagent.protocol import DomainState


@dataclass(frozen=True)
class NewProcessor:
    """`restart`: shut a running guest down and start it again to apply the processor. `order` identifies the order, so
    that a repeated one is recognised."""

    mode: CpuMode
    restart: bool
    order: str | None = None


async def change(tx: Transaction, vm: MachineRow, new: NewProcessor) -> tuple[dict[str, object], MachineStatus | None]:
    """Decide about another processor; returns the task's parameters, and the machine's status meanwhile: None if it
    does not change. Nothing is recorded before the host has changed the definition. Raises conflict, invalid."""
    require_not_in_rescue(vm, refusal_text(Order.CPU_SET))
    status = vm.status if vm.status is MachineStatus.STOPPED else moved(vm, Order.CPU_SET)
    defined = vm.cpu_next_mode or vm.cpu_mode
    restart = new.restart and vm.status is MachineStatus.RUNNING
    if new.mode is defined and not (restart and vm.cpu_next_mode is not None):
        raise invalid("Nothing would change.", hint="Give another cpu_mode, or restart for one that is waiting.")
    if restart:
        await require_not_suspended(tx, vm)
    parameters: dict[str, object] = {
        "cpu_mode": new.mode.value,
        "before": defined.value,
        "restart": restart,
        "order": new.order,
    }
    return parameters, status if restart else None


async def changed(tx: Transaction, vm: MachineRow, task: Task, state: DomainState | None) -> None:
    """Record the new processor, which is now in the host's definition. Unless the guest is still running, the guest has
    it, too."""
    mode = CpuMode(task.parameters["cpu_mode"])
    waits = state is not DomainState.STOPPED and not task.parameters["restart"] and mode is not vm.cpu_mode
    await write_processor(tx, vm.id, vm.cpu_mode if waits else mode, mode if waits else None)


def restarts_guest(task: Task) -> bool:
    """Whether the task, once it has succeeded, has started the guest from its definition."""
    return task.op in _STARTS or (task.op == Order.RESIZE.op and bool(task.parameters["restart"]))


async def apply_pending_processor(tx: Transaction, vm: MachineRow) -> None:
    """Record that the guest was started from the definition, and so has the definition's processor."""
    if vm.cpu_next_mode is not None:
        await write_processor(tx, vm.id, vm.cpu_next_mode, None)


_STARTS: Final = frozenset({Order.START.op, Order.REBOOT.op, Order.REINSTALL.op, Order.RESCUE.op, Order.RESCUE_END.op})
