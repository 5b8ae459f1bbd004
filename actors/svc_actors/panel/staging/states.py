"""The states of a staging copy and every move between them. Nothing else decides a state.

How it works. A site without a copy has the state `none`, and no record. An *order* of a caller starts a job, and the
*end* of that job moves the copy on:

- a copy is complete, or it is `failed`: after a creation or a refresh that stopped half-way, the copy can only be
  refreshed or deleted;
- a push never harms the copy, and afterwards the live site is either as before or as pushed. So every push ends in
  `ready`; if it was undone, the reason is kept. If it cannot be undone at once, because the database server does not
  answer, the state is `undoing` until then, and no job of the site or of its copy starts before.

Rejected: the state `ready` while a push still has to be undone. After a kill the record said that the push was not
done, and other jobs of the site could start while its tables were those of the copy.

Deleting the copy leads to `none` from every state in which no job works on it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class StagingStatus(StrEnum):
    NONE = "none"
    CREATING = "creating"
    READY = "ready"
    REFRESHING = "refreshing"
    PUSHING = "pushing"
    UNDOING = "undoing"
    FAILED = "failed"


class StagingOrder(StrEnum):
    CREATE = "create"
    REFRESH = "refresh"
    PUSH = "push"
    DELETE = "delete"


class StagingEnd(StrEnum):
    COPIED = "copied"
    BROKEN = "broken"
    PUSHED = "pushed"
    UNDONE = "undone"
    """A push has ended, and the live site is as before."""
    INTERRUPTED = "interrupted"
    """A push has ended, and the live site still has to be restored."""


StagingMove = StagingOrder | StagingEnd

_S = StagingStatus

MOVES: Final[dict[StagingStatus, dict[StagingMove, StagingStatus]]] = {
    _S.NONE: {StagingOrder.CREATE: _S.CREATING},
    _S.CREATING: {StagingEnd.COPIED: _S.READY, StagingEnd.BROKEN: _S.FAILED},
    _S.READY: {
        StagingOrder.REFRESH: _S.REFRESHING,
        StagingOrder.PUSH: _S.PUSHING,
        StagingOrder.DELETE: _S.NONE,
    },
    _S.REFRESHING: {StagingEnd.COPIED: _S.READY, StagingEnd.BROKEN: _S.FAILED},
    # A push never leads to FAILED: it only reads the copy.
    _S.PUSHING: {StagingEnd.PUSHED: _S.READY, StagingEnd.UNDONE: _S.READY, StagingEnd.INTERRUPTED: _S.UNDOING},
    # No DELETE here: other jobs of the site wait as long as this state lasts.
    _S.UNDOING: {StagingEnd.UNDONE: _S.READY},
    _S.FAILED: {StagingOrder.REFRESH: _S.REFRESHING, StagingOrder.DELETE: _S.NONE},
}


class IllegalStagingMove(Exception):  # noqa: N818 - named for what it says
    """The table has no such move; the copy keeps its state."""

    def __init__(self, status: StagingStatus, move: StagingMove) -> None:
        super().__init__(f"{move.value} has no move from {status.value}")


def move(status: StagingStatus, by: StagingMove) -> StagingStatus:
    """The state to which `by` leads from `status`. Raises `IllegalStagingMove`."""
    try:
        return MOVES[status][by]
    except KeyError:
        raise IllegalStagingMove(status, by) from None


def diagram() -> str:
    """The table as a mermaid state diagram; docs/staging.md holds exactly this."""
    lines = ["stateDiagram-v2", "    [*] --> none"]
    for status, moves in MOVES.items():
        lines += [f"    {status.value} --> {target.value}: {by.value}" for by, target in moves.items()]
    return "\n".join(lines)
