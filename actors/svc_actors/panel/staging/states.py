"""The states of a staging copy and every move between them. Nothing else decides a state.

Theory of operation. A site without a copy has the state `none`, and no record. An *order* of a caller begins a job, and
the *end* of that job moves it on:

- a copy is whole or it is `failed`: what a creation or a refresh has left half-way is only good for another refresh;
- a push never harms the copy, and the live site is what it was or what was pushed. So every push ends in `ready`; one
  that was undone leaves its reason. One that cannot be undone at once, since the database server does not answer, is
  `undoing` until it is: no job of the site or its copy begins before.

Deleting the copy leads to `none` from everywhere but where a job works on it.
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
    """Of a push: the live site is as it was."""
    INTERRUPTED = "interrupted"
    """Of a push: the live site is still to be put back."""


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
    _S.PUSHING: {StagingEnd.PUSHED: _S.READY, StagingEnd.UNDONE: _S.READY, StagingEnd.INTERRUPTED: _S.UNDOING},
    _S.UNDOING: {StagingEnd.UNDONE: _S.READY},
    _S.FAILED: {StagingOrder.REFRESH: _S.REFRESHING, StagingOrder.DELETE: _S.NONE},
}


class IllegalStagingMove(Exception):  # noqa: N818 - named for what it says
    """There is no such move; the copy stays what it was."""

    def __init__(self, status: StagingStatus, move: StagingMove) -> None:
        super().__init__(f"{move.value} has no move from {status.value}")


def move(status: StagingStatus, by: StagingMove) -> StagingStatus:
    """Where `by` leads from `status`. Raises `IllegalStagingMove`."""
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
