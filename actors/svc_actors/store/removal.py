"""Removes many rows without blocking other transactions.

A batch is a transaction of some milliseconds: no lock is held for long, and rows locked by others are left for the next
time. A pause between batches ensures that no request waits behind a large delete.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from svc_actors.store.database import Database

BATCH: Final = 2_000
_IDLE_SHARE: Final = 4.0
"""The pause after a batch, as a multiple of the batch's own time: removing uses a fifth of the time. Others wait for
the disk and for vacuum, too, not for locks alone."""


async def remove_rows(database: Database, table: str, condition: str, *args: object) -> int:
    """Remove the rows of `table` (a name in the code) for which `condition` holds, with `$1`... for `args`.

    Rows are taken by their place in the table: the condition's index finds a batch of places, whatever the key is.
    """
    sql = f"""
        DELETE FROM {table} WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {table} WHERE {condition} LIMIT {BATCH} FOR UPDATE SKIP LOCKED
        ))
    """
    return await in_batches(lambda: database.change(sql, *args), BATCH)


async def in_batches(remove: Callable[[], Awaitable[int]], batch: int) -> int:
    """Call `remove` until it removes less than a full batch; returns the total number of rows."""
    removed = 0
    while True:
        began = trio.current_time()
        count = await remove()
        removed += count
        if count < batch:
            return removed
        await pause_after_work(began)


async def pause_after_work(started: float) -> None:
    """Pause in proportion to the work that started at `started`, to leave the disk to others."""
    await trio.sleep(_IDLE_SHARE * (trio.current_time() - started))
