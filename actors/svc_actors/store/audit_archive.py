"""Old audit rows: written to a file that stays, then removed from the table.

`audit-<first>-<last>.jsonl.gz` holds one row a line, as JSON, in the order of their ids; its SHA-256 is recorded in
`audit_exports`. Invariants: a row leaves the table only after the file that holds it is on disk and recorded, and never
before it is 30 days old, whatever the settings say (the database sees to both, see the migration); only sealed rows are
exported (`audit_seals`). A crash in between leaves a file that the next run writes again, or recorded rows that it
removes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Sequence
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Final

import trio

from svc_actors.store.database import Database
from svc_actors.store.removal import pause_after_work
from svc_actors.store.transactions import Transaction
from svc_common.durable import put_in_place

ROWS_A_FILE: Final = 100_000
_PAGE: Final = 1_000
"""Rows read at once: some milliseconds of the event loop's time."""
_REMOVED_AT_ONCE: Final = 1_000


async def archive_audit(database: Database, folder: Path, keep: timedelta, *, rows_a_file: int = ROWS_A_FILE) -> int:
    """Export and remove the rows older than `keep`; returns how many were removed. For one task at a time."""
    await trio.to_thread.run_sync(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
    # First remove the rows that an earlier process has exported but not removed before it ended.
    lowest = await database.fetchval("SELECT min(id) FROM audit")
    left = await database.fetch(
        "SELECT first_id, last_id FROM audit_exports WHERE last_id >= $1 ORDER BY first_id", lowest
    )
    removed = 0
    for row in left:
        removed += await _remove(database, keep, max(row["first_id"], lowest), row["last_id"])
    while exported := await _export(database, folder, keep, rows_a_file):
        removed += await _remove(database, keep, *exported)
    return removed


async def _remove(database: Database, keep: timedelta, first: int, last: int) -> int:
    removed = 0
    for start in range(first, last + 1, _REMOVED_AT_ONCE):
        began, end = trio.current_time(), min(start + _REMOVED_AT_ONCE - 1, last)
        removed += await database.fetchval("SELECT remove_exported_audit($1, $2, $3)", keep, start, end)
        await pause_after_work(began)
    return removed


async def _export(database: Database, folder: Path, keep: timedelta, most: int) -> tuple[int, int] | None:
    """Write the next rows to a file, and return their first and last id; None if no row is old enough."""
    after: int = await database.fetchval("SELECT coalesce(max(last_id), 0) FROM audit_exports")
    sealed: int = await database.fetchval("SELECT coalesce(max(last_id), 0) FROM audit_seals")
    unfinished = folder / "audit.unfinished"
    first = last = rows = 0
    file = await trio.to_thread.run_sync(_Writer, unfinished)
    try:
        while rows < most:
            began = trio.current_time()
            position: int | None = await database.fetchval("SELECT min(id) FROM audit WHERE id > $1", last or after)
            if position is None:
                break
            # The condition is a range of ids, so no query plan can sort all remaining rows.
            page = await database.fetch(
                """
                SELECT id, at < now() - $3::interval AS old, row_to_json(audit)::text AS line
                FROM audit WHERE id >= $1 AND id < $2 AND id <= $4 ORDER BY id
                """,
                position,
                position + min(_PAGE, most - rows),
                keep,
                sealed,
            )
            # Stop at the first row that is too young: a file must contain all rows between its first and its last.
            old = list(takewhile(lambda row: row["old"], page))
            if not old:
                break
            first, last, rows = first or old[0]["id"], old[-1]["id"], rows + len(old)
            await trio.to_thread.run_sync(file.write, [row["line"] for row in old])
            if len(old) < len(page):
                break
            await pause_after_work(began)
    finally:
        sha256 = await trio.to_thread.run_sync(file.close)
    if not rows:
        await trio.Path(unfinished).unlink()
        return None
    name = f"audit-{first:012d}-{last:012d}.jsonl.gz"
    await trio.to_thread.run_sync(put_in_place, unfinished, folder / name)

    async def record(tx: Transaction) -> None:
        await tx.execute(
            "INSERT INTO audit_exports (first_id, last_id, rows, file, sha256) VALUES ($1, $2, $3, $4, $5)",
            first,
            last,
            rows,
            name,
            sha256,
        )

    await database.transact(record)
    return first, last


class _Writer:
    """A compressed file, written in threads; `close` returns its SHA-256 once it is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._raw = os.fdopen(descriptor, "r+b")
        # Level 1 compresses audit rows, which are repetitive, to a tenth. Higher levels take 5 times as long and gain
        # little.
        self._gzip = gzip.GzipFile(fileobj=self._raw, mode="wb", compresslevel=1, mtime=0)

    def write(self, lines: Sequence[str]) -> None:
        self._gzip.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> str:
        self._gzip.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        self._raw.seek(0)
        digest = hashlib.file_digest(self._raw, "sha256").hexdigest()
        self._raw.close()
        return digest
