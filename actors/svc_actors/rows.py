"""Small help with rows that are known to be there."""

from __future__ import annotations

from svc_actors.store import Record


def sole(row: Record | None) -> Record:
    """The row of a statement that always gives one (`INSERT ... RETURNING`, an aggregate)."""
    if row is None:
        raise LookupError("a statement that always gives a row gave none")
    return row
