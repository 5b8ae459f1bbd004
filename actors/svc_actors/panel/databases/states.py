"""The statuses of a database and every move between them. Nothing else decides a status.

`creating` and `deleting` mean unfinished work, all of which may be repeated: a core that starts continues it, and so
does the next round if an engine did not answer. An emptied database goes through `creating` again, so that this, too,
continues after an interruption. Nothing leaves `deleting`: the record is removed once the engine has dropped the
database.
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
    """The database exists on its engine."""
    EMPTY = "empty"
    DELETE = "delete"


_S = DatabaseStatus

MOVES: Final[dict[DatabaseStatus, dict[DatabaseMove, DatabaseStatus]]] = {
    _S.CREATING: {DatabaseMove.MADE: _S.ACTIVE, DatabaseMove.DELETE: _S.DELETING},
    _S.ACTIVE: {DatabaseMove.EMPTY: _S.CREATING, DatabaseMove.DELETE: _S.DELETING},
    _S.DELETING: {DatabaseMove.DELETE: _S.DELETING},
}


def statuses_with(by: DatabaseMove) -> tuple[DatabaseStatus, ...]:
    """The statuses that have a move `by`."""
    return tuple(status for status, moves in MOVES.items() if by in moves)
