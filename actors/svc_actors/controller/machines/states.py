"""The statuses of a machine and every move between them. Nothing else decides a status.

Theory of operation. A machine has one status in the record. Two kinds of event move it:

1. *Orders*: requests of a caller. An order is accepted only if the table has a move for it; it puts the machine into a
   transient status (`starting`, `stopping`, `rebooting`, `deleting`) and creates a task. One task at a time: while one
   is open every other order is refused as `not_ready`, except `force_stop`, which supersedes a start, a shutdown, a
   reboot or a reset that is under way. A resize, or another processor, without a restart leaves the status as it is,
   and so does the migration of a stopped machine. Rescue is not a status: a machine in rescue is running or stopped,
   and whether it boots the rescue system is a separate fact (`rescue`).
2. *Observations*: the state of the guest as the node reported it. Only an observation leads to `running` and `stopped`;
   the record never claims more than was seen. While a task is open the observation is stored next to the status and
   applied when the task ends (a guest that is being rebooted is briefly off, and nobody should see it `stopped`).

Rule one: a task's end moves the machine by the last observation, whether the task succeeded or not. A shutdown that the
guest ignored leads back to `running`, because that is what the host reports.
Rule two: if the host has never reported the machine, a failed task leads to `failed`, with the cause.

`failed` means that the creation failed or that the host lost the machine, always with `status_reason`. A machine that
was built leaves `failed` by an observation, when it comes back on its host, or by a start, which defines it again from
the host's own record; one that was never built can only be deleted.
`unknown` is shown, never stored: the machine's node is not online, so its current state is not known.

Why: docs/decisions/0025-machine-states-and-power.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from svc_nodeagent.protocol import DomainState


class MachineStatus(StrEnum):
    CREATING = "creating"
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    REBOOTING = "rebooting"
    DELETING = "deleting"
    FAILED = "failed"
    DELETED = "deleted"


class Order(StrEnum):
    """The orders that a caller may give to an existing machine."""

    START = "start"
    SHUTDOWN = "shutdown"
    REBOOT = "reboot"
    FORCE_STOP = "force_stop"
    RESET = "reset"
    RESIZE = "resize"
    REINSTALL = "reinstall"
    CPU_SET = "cpu.set"
    RESCUE = "rescue"
    """Boot the rescue system instead of the machine's own disk, now and at every start until `RESCUE_END`."""
    RESCUE_END = "rescue_end"
    MIGRATE = "migrate"
    """The order for a running machine: it is shut down, moved, and started on the target node. Its desired power does
    not change."""
    DELETE = "delete"

    @property
    def op(self) -> str:
        """The name of the order's task, and of the node operation that executes the order."""
        return f"vm.{self.value}"

    @property
    def wants(self) -> DesiredPower:
        """The desired state once the order is accepted."""
        return DesiredPower.STOPPED if self in _SWITCHES_OFF else DesiredPower.RUNNING


class DesiredPower(StrEnum):
    """The desired power state; `power` says what sets it."""

    RUNNING = "running"
    STOPPED = "stopped"


class RestartPolicy(StrEnum):
    """Whether a machine that went off without an order is started again."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    """Restart the machine unless its guest shut itself down."""
    NEVER = "never"


_SWITCHES_OFF: Final = frozenset({Order.SHUTDOWN, Order.FORCE_STOP, Order.DELETE})


class Observation(StrEnum):
    """The state that the host reported. `UNBUILT`: there is nothing to report, because the task failed before there was
    a machine."""

    RUNNING = "host_running"
    STOPPED = "host_stopped"
    LOST = "host_lost"
    DELETED = "host_deleted"
    UNBUILT = "unbuilt"


Event = Order | Observation

_S = MachineStatus

MOVES: Final[dict[MachineStatus, dict[Event, MachineStatus]]] = {
    _S.CREATING: {
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
        Observation.UNBUILT: _S.FAILED,
    },
    _S.STOPPED: {
        Order.START: _S.STARTING,
        Order.REINSTALL: _S.STARTING,
        Order.RESCUE: _S.STARTING,
        Order.RESCUE_END: _S.STARTING,
        Order.DELETE: _S.DELETING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
    },
    _S.STARTING: {
        Order.FORCE_STOP: _S.STOPPING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
    },
    _S.RUNNING: {
        Order.SHUTDOWN: _S.STOPPING,
        Order.REBOOT: _S.REBOOTING,
        Order.FORCE_STOP: _S.STOPPING,
        Order.RESET: _S.REBOOTING,
        Order.RESIZE: _S.REBOOTING,
        Order.REINSTALL: _S.REBOOTING,
        Order.RESCUE: _S.REBOOTING,
        Order.RESCUE_END: _S.REBOOTING,
        Order.CPU_SET: _S.REBOOTING,
        Order.MIGRATE: _S.REBOOTING,
        Order.DELETE: _S.DELETING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
    },
    _S.STOPPING: {
        Order.FORCE_STOP: _S.STOPPING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
    },
    _S.REBOOTING: {
        Order.FORCE_STOP: _S.STOPPING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
    },
    _S.DELETING: {
        Observation.DELETED: _S.DELETED,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
        Observation.UNBUILT: _S.FAILED,
    },
    _S.FAILED: {
        Order.START: _S.STARTING,
        Order.DELETE: _S.DELETING,
        Observation.RUNNING: _S.RUNNING,
        Observation.STOPPED: _S.STOPPED,
        Observation.LOST: _S.FAILED,
        Observation.UNBUILT: _S.FAILED,
    },
    _S.DELETED: {},
}

UNKNOWN_WHILE_AWAY: Final = frozenset({_S.STOPPED, _S.STARTING, _S.RUNNING, _S.STOPPING, _S.REBOOTING})
"""Statuses that only the host can know. While the machine's node is not online, `unknown` is shown instead of these,
and only a deletion is accepted as an order."""

_REFUSAL_TEXTS: Final = {
    Order.START: "started",
    Order.SHUTDOWN: "shut down",
    Order.REBOOT: "rebooted",
    Order.FORCE_STOP: "forced to stop",
    Order.RESET: "reset",
    Order.RESIZE: "resized",
    Order.REINSTALL: "reinstalled",
    Order.CPU_SET: "given another processor",
    Order.RESCUE: "put into rescue",
    Order.RESCUE_END: "taken out of rescue",
    Order.MIGRATE: "moved",
    Order.DELETE: "deleted",
}


class IllegalMove(Exception):  # noqa: N818 - named for what it says
    """There is no such move; the machine keeps its status."""

    def __init__(self, status: MachineStatus, event: Event) -> None:
        super().__init__(f"{event.value} has no move from {status.value}")


def move(status: MachineStatus, event: Event) -> MachineStatus:
    """The status after `event` in `status`. Raises `IllegalMove`."""
    try:
        return MOVES[status][event]
    except KeyError:
        raise IllegalMove(status, event) from None


def observe(state: DomainState) -> Observation | None:
    """The observation for a state that a host reported. None for a guest that is shutting down, because that is not
    final."""
    match state:
        case DomainState.RUNNING | DomainState.PAUSED:
            return Observation.RUNNING
        case DomainState.STOPPED | DomainState.CRASHED:
            return Observation.STOPPED
        case DomainState.ABSENT:
            return Observation.LOST
        case DomainState.SHUTTING_DOWN:
            return None


def refusal_text(order: Order) -> str:
    """The participle for a refusal of the order: `started`, `forced to stop`, ..."""
    return _REFUSAL_TEXTS[order]


def start_hint(status: MachineStatus) -> str | None:
    """A hint for an order that needs a running machine; None if the machine's owner can do nothing about it."""
    match status:
        case MachineStatus.STOPPED:
            return "Start the machine first."
        case MachineStatus.CREATING | MachineStatus.STARTING | MachineStatus.REBOOTING:
            return "Wait until the machine is running."
        case MachineStatus.STOPPING:
            return "Wait until the machine is stopped, then start it."
        case _:
            return None


def diagram() -> str:
    """The table as a mermaid state diagram; docs/machine-states.md holds exactly this."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    for status, moves in MOVES.items():
        by_target: dict[MachineStatus, list[str]] = {}
        for event, target in moves.items():
            if target is not status or isinstance(event, Order):
                by_target.setdefault(target, []).append(event.value)
        for target, names in by_target.items():
            end = "[*]" if target is MachineStatus.DELETED else target.value
            lines.append(f"    {status.value} --> {end}: {', '.join(names)}")
    return "\n".join(lines)
