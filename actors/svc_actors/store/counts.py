"""Row counts of long lists, maintained by triggers instead of counted on each read.

A trigger of the list's table writes what a transaction changes into `list_changes`. Rows are only added there, so no
two transactions wait for each other to update a common number. `fold` adds the rows to `list_counts`. A view
`<table>_numbers` computes the same numbers by counting, and `recount` corrects `list_counts` by it.

Invariant: the number of a list is the sum over both tables (the view `list_numbers`), in every snapshot, exactly.

Why: docs/decisions/0006-lists-and-search.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
import trio

from svc_actors.store.database import Database
from svc_actors.store.transactions import Queryable

FOLD_SECONDS: Final = 2.0
"""Every reader of a number adds up the changes that are not folded yet: some thousands at a thousand commits a
second."""
RECOUNT_SECONDS: Final = 24 * 3600.0
_RECOUNT_TIMEOUT: Final = 600.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.store")


async def run(database: Database, views: Sequence[str]) -> None:
    """Fold until cancelled; once a day correct the numbers by the views, which count all rows."""
    recount_at = trio.current_time() + RECOUNT_SECONDS
    while True:
        await trio.sleep(FOLD_SECONDS)
        await fold(database)
        if trio.current_time() >= recount_at:
            recount_at = trio.current_time() + RECOUNT_SECONDS
            await recount(database, views)


async def fold(database: Queryable) -> None:
    """Add the changes to the numbers. Atomic; a second one at the same time finds nothing to add."""
    await database.execute(
        """
        WITH taken AS (DELETE FROM list_changes RETURNING list, scope, words, number)
        INSERT INTO list_counts AS known (list, scope, words, number)
        SELECT list, scope, words, sum(number) FROM taken GROUP BY list, scope, words ORDER BY list, scope, words
        ON CONFLICT ON CONSTRAINT list_counts_once DO UPDATE SET number = known.number + excluded.number
        """
    )


async def recount(database: Queryable, views: Sequence[str]) -> int:
    """Correct every number by the counts of the views in the same snapshot; returns how many were wrong."""
    counted = " UNION ALL ".join(f"SELECT list, scope, words, number FROM {view}" for view in views)
    corrected = await database.fetch(
        f"""
        INSERT INTO list_changes (list, scope, words, number)
        SELECT list, scope, words, sum(number)
        FROM ({counted} UNION ALL SELECT list, scope, words, -number FROM list_numbers) differences
        GROUP BY list, scope, words HAVING sum(number) <> 0
        RETURNING list
        """,
        timeout=_RECOUNT_TIMEOUT,
    )
    if corrected:
        log.warning("counts.corrected", numbers=len(corrected))
    return len(corrected)
