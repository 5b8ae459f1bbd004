"""Deletes old jobs with their steps and logs."""

from __future__ import annotations

from typing import Final

import trio

from svc_actors.store import Database

KEPT_DAYS: Final = 90
"""Days that jobs are kept after their end."""
REMOVAL_PERIOD: Final = 3600.0
_BATCH: Final = 20
"""The number of jobs removed in one batch: each may have a million lines."""


async def forget_old_jobs(database: Database) -> int:
    """Remove the jobs that ended more than `KEPT_DAYS` ago; returns how many."""
    removed = 0
    while True:
        began = trio.current_time()
        number = await database.change(
            """DELETE FROM jobs WHERE id IN (
                   SELECT id FROM jobs WHERE ended_at < now() - make_interval(days => $1)
                   ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED
               )""",
            KEPT_DAYS,
            _BATCH,
        )
        removed += number
        if number < _BATCH:
            return removed
        # Leave time for other writers, as in the controller's retention.
        await trio.sleep(4 * (trio.current_time() - began))
