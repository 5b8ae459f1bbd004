"""The statuses of a database and every move between them. Nothing else decides a status.

`creating` and `deleting` are work that is under way, all of which may be repeated: a core that starts goes on with it,
and so does the next round when an engine did not answer. A database that is emptied is created anew in the place of
what it held, so that also this goes on where it was cut. Out of `deleting` leads no other status: the record is removed
when the engine has nothing of the database any more.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class DatabaseStatus(StrEnum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


class DatabaseMove(StrEnum):
    MADE = "made"
    """The engine has it."""
    EMPTY = "empty"
    DELETE = "delete"


_S = DatabaseStatus

MOVES: Final[dict[DatabaseStatus, dict[DatabaseMove, DatabaseStatus]]] = {
    _S.CREATING: {DatabaseMove.MADE: _S.ACTIVE, DatabaseMove.DELETE: _S.DELETING},
    _S.ACTIVE: {DatabaseMove.EMPTY: _S.CREATING, DatabaseMove.DELETE: _S.DELETING},
    _S.DELETING: {DatabaseMove.DELETE: _S.DELETING},
}


def before(by: DatabaseMove) -> tuple[DatabaseStatus, ...]:
    """The statuses from which `by` leads somewhere."""
    return tuple(status for status, moves in MOVES.items() if by in moves)
