"""The states of a volume and every move between them. Nothing else decides a state.

Theory of operation. *Orders* are requests of a caller. An order is accepted only if the table has a move for it; it
puts the volume into the order's own state and creates a task. *Findings* say where the volume is, by the end of that
task or an inventory of the node: free, attached to its machine, gone, or lost.

Rule: after a failed task the volume is at its previous place. If a guest does not release a volume, the volume stays
`in_use`. Only a creation has no previous place: if it fails, the volume becomes `failed`. A volume that its node no
longer has is `failed`, too: it can only be deleted, or recovers when its file comes back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class VolumeState(StrEnum):
    CREATING = "creating"
    AVAILABLE = "available"
    ATTACHING = "attaching"
    IN_USE = "in_use"
    DETACHING = "detaching"
    GROWING = "growing"
    DELETING = "deleting"
    FAILED = "failed"
    DELETED = "deleted"


class VolumeOrder(StrEnum):
    ATTACH = "attach"
    DETACH = "detach"
    GROW = "grow"
    DELETE = "delete"

    @property
    def op(self) -> str:
        """The name of the order's task, and of the node operation that executes the order."""
        return f"volume.{self.value}"


CREATE: Final = "volume.create"
OPS: Final = frozenset({CREATE, *(order.op for order in VolumeOrder)})


class Finding(StrEnum):
    FREE = "free"
    ATTACHED = "attached"
    GONE = "gone"
    LOST = "lost"


Event = VolumeOrder | Finding

_S = VolumeState

MOVES: Final[dict[VolumeState, dict[Event, VolumeState]]] = {
    _S.CREATING: {Finding.FREE: _S.AVAILABLE, Finding.ATTACHED: _S.IN_USE, Finding.LOST: _S.FAILED},
    _S.AVAILABLE: {
        VolumeOrder.ATTACH: _S.ATTACHING,
        VolumeOrder.GROW: _S.GROWING,
        VolumeOrder.DELETE: _S.DELETING,
        Finding.ATTACHED: _S.IN_USE,
        Finding.LOST: _S.FAILED,
    },
    _S.ATTACHING: {Finding.FREE: _S.AVAILABLE, Finding.ATTACHED: _S.IN_USE, Finding.LOST: _S.FAILED},
    _S.IN_USE: {
        VolumeOrder.DETACH: _S.DETACHING,
        VolumeOrder.GROW: _S.GROWING,
        Finding.ATTACHED: _S.IN_USE,
        Finding.FREE: _S.AVAILABLE,
        Finding.GONE: _S.DELETED,
        Finding.LOST: _S.FAILED,
    },
    _S.DETACHING: {Finding.FREE: _S.AVAILABLE, Finding.ATTACHED: _S.IN_USE, Finding.LOST: _S.FAILED},
    _S.GROWING: {Finding.FREE: _S.AVAILABLE, Finding.ATTACHED: _S.IN_USE, Finding.LOST: _S.FAILED},
    _S.DELETING: {Finding.GONE: _S.DELETED, Finding.FREE: _S.AVAILABLE, Finding.LOST: _S.FAILED},
    _S.FAILED: {
        VolumeOrder.DETACH: _S.DETACHING,
        VolumeOrder.DELETE: _S.DELETING,
        Finding.FREE: _S.AVAILABLE,
        Finding.ATTACHED: _S.IN_USE,
        Finding.GONE: _S.DELETED,
        Finding.LOST: _S.FAILED,
    },
    _S.DELETED: {},
}


class IllegalMove(Exception):  # noqa: N818 - named for what it says
    """There is no such move; the volume keeps its state."""


def move(state: VolumeState, event: Event) -> VolumeState:
    """The state after `event` in `state`. Raises `IllegalMove`."""
    try:
        return MOVES[state][event]
    except KeyError:
        raise IllegalMove(f"{event.value} has no move from {state.value}") from None


def diagram() -> str:
    """The table as a mermaid state diagram; docs/volumes.md holds exactly this."""
    lines = ["stateDiagram-v2", "    [*] --> creating"]
    for state, moves in MOVES.items():
        by_target: dict[VolumeState, list[str]] = {}
        for event, target in moves.items():
            if target is not state:
                by_target.setdefault(target, []).append(event.value)
        for target, names in by_target.items():
            end = "[*]" if target is VolumeState.DELETED else target.value
            lines.append(f"    {state.value} --> {end}: {', '.join(names)}")
    return "\n".join(lines)
