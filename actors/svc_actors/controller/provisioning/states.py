"""The states of a service and every move between them (specification, States and transitions). Nothing else
decides a state.

A service's state is the desired state of its machine, which follows (`settling`). So a service is suspended or
terminated as soon as this is ordered, and `settled` says whether its machine has followed.

Only `provisioning` waits for its machine: it ends when the host has built it, or has failed to. A failed service keeps
its row and its id; the remains of its machine are removed, and a retry orders another one.

Why: docs/decisions/0036-provisioning.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ServiceState(StrEnum):
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    PROVISIONING_FAILED = "provisioning_failed"
    SUSPENDED = "suspended"
    TERMINATED = "terminated"


class ServiceOrder(StrEnum):
    """The orders that a billing system may give about an existing service."""

    RETRY = "retry"
    SUSPEND = "suspend"
    UNSUSPEND = "unsuspend"
    CHANGE_PLAN = "change_plan"
    RESIZE = "resize"
    REINSTALL = "reinstall"
    TERMINATE = "terminate"


class Outcome(StrEnum):
    """The ways in which provisioning ends."""

    BUILT = "machine_built"
    FAILED = "machine_failed"


class SuspendMode(StrEnum):
    """`power_off`: the machine is shut down. `network_isolate`: the machine keeps running, and its host blocks its
    traffic."""

    POWER_OFF = "power_off"
    NETWORK_ISOLATE = "network_isolate"


ServiceMove = ServiceOrder | Outcome

_S = ServiceState

MOVES: Final[dict[ServiceState, dict[ServiceMove, ServiceState]]] = {
    _S.PROVISIONING: {
        Outcome.BUILT: _S.ACTIVE,
        Outcome.FAILED: _S.PROVISIONING_FAILED,
        ServiceOrder.TERMINATE: _S.TERMINATED,
    },
    _S.ACTIVE: {
        ServiceOrder.SUSPEND: _S.SUSPENDED,
        ServiceOrder.UNSUSPEND: _S.ACTIVE,
        ServiceOrder.CHANGE_PLAN: _S.ACTIVE,
        ServiceOrder.RESIZE: _S.ACTIVE,
        ServiceOrder.REINSTALL: _S.ACTIVE,
        ServiceOrder.TERMINATE: _S.TERMINATED,
    },
    _S.PROVISIONING_FAILED: {
        ServiceOrder.RETRY: _S.PROVISIONING,
        ServiceOrder.TERMINATE: _S.TERMINATED,
    },
    _S.SUSPENDED: {
        ServiceOrder.SUSPEND: _S.SUSPENDED,
        ServiceOrder.UNSUSPEND: _S.ACTIVE,
        ServiceOrder.CHANGE_PLAN: _S.SUSPENDED,
        ServiceOrder.RESIZE: _S.SUSPENDED,
        ServiceOrder.REINSTALL: _S.SUSPENDED,
        ServiceOrder.TERMINATE: _S.TERMINATED,
    },
    _S.TERMINATED: {
        ServiceOrder.TERMINATE: _S.TERMINATED,
    },
}

_WORDS: Final = {
    ServiceOrder.RETRY: "retried",
    ServiceOrder.SUSPEND: "suspended",
    ServiceOrder.UNSUSPEND: "unsuspended",
    ServiceOrder.CHANGE_PLAN: "moved to another plan",
    ServiceOrder.RESIZE: "resized",
    ServiceOrder.REINSTALL: "reinstalled",
    ServiceOrder.TERMINATE: "terminated",
}


class IllegalMove(Exception):  # noqa: N818 - named for what it says
    """There is no such move; the service keeps its state."""


def move(state: ServiceState, event: ServiceMove) -> ServiceState:
    """The state after `event` in `state`. Raises `IllegalMove`."""
    try:
        return MOVES[state][event]
    except KeyError:
        raise IllegalMove(f"{event.value} has no move from {state.value}") from None


def participle_of(order: ServiceOrder) -> str:
    """The participle for a sentence about the order: `suspended`, `unsuspended`, ..."""
    return _WORDS[order]


def diagram() -> str:
    """The table as a mermaid state diagram; docs/provisioning.md holds exactly this."""
    lines = ["stateDiagram-v2", "    [*] --> provisioning", "    [*] --> active: adopt, link"]
    for state, moves in MOVES.items():
        by_target: dict[ServiceState, list[str]] = {}
        for event, target in moves.items():
            if target is not state:
                by_target.setdefault(target, []).append(event.value)
        lines.extend(f"    {state.value} --> {target.value}: {', '.join(names)}" for target, names in by_target.items())
    lines.append("    terminated --> [*]")
    return "\n".join(lines)
