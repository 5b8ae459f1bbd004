"""`tools/bench retention`: how fast what is over is removed from millions of rows, and what writers wait meanwhile.

Nine in ten rows are old: tasks with nineteen lines of log each, and audit rows, which are exported before they are
removed. Writers commit a task with a line of its log, an audit row and an event, at a steady pace; their times are
taken before anything is removed, while tasks and logs are, and while the audit trail is.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final
from urllib.parse import urlsplit
from uuid import uuid4

import trio
from rich.console import Console
from rich.table import Table

from svc.cli.controller_services import COUNTED
from svc_actors.controller.retention import remove_old_tasks
from svc_actors.store import (
    Database,
    EventKind,
    EventLog,
    Lane,
    NewEvent,
    append,
    counts,
    embedded,
    enter_lane,
    migrate,
)
from svc_actors.store.audit_archive import archive_audit
from svc_actors.store.audit_seals import Sealer
from svc_actors.store.transactions import Transaction

LINES: Final = 19
"""Of log, a task."""
AUDIT_SHARE: Final = 0.1
WRITERS: Final = 8
PACE: Final = 0.08
"""Seconds from one change of a writer to its next: a hundred a second by all of them."""
ALONE_SECONDS: Final = 20.0
KEEP: Final = timedelta(days=90)

_MADE = "now() - interval '200 days' * (1 - g::float8 / $1 * 0.61)"
"""When row `g` of `$1` was made: spread over 200 days, so that a tenth is younger than `KEEP` and a little more."""

FILL_TASKS: Final = f"""
    INSERT INTO tasks (op, status, resource_kind, resource_id, resource_name, caller, created_at, started_at, ended_at,
                       deadline_at)
    SELECT (ARRAY['vm.start', 'vm.shutdown', 'vm.create'])[1 + g % 3], 'succeeded', 'vm', gen_random_uuid(),
           'machine-' || g % 50000, '{{"name": "someone"}}', at, at, at, at
    FROM generate_series(1, $1::int) g CROSS JOIN LATERAL (SELECT {_MADE} AS at) made
"""
FILL_LOGS: Final = """
    INSERT INTO task_events (task_id, position, at, level, message)
    SELECT id, position, ended_at, 'info', 'Step ' || position || ' of this task is done, as its log says here.'
    FROM (SELECT id, ended_at FROM tasks ORDER BY ended_at) made CROSS JOIN generate_series(1, $1::int) position
"""
FILL_AUDIT: Final = f"""
    INSERT INTO audit (at, actor, role, via, request_id, operation, target_kind, target_id, target_name, outcome)
    SELECT {_MADE}, 'person-' || g % 500, 'customer', 'token', 'request-' || g, 'vm.start', 'vm', gen_random_uuid(),
           'machine-' || g % 50000, 'done'
    FROM generate_series(1, $1::int) g
"""


async def fill(url: str, rows: int) -> str:
    """Make `rows` rows in all and return their size; as a superuser, so that triggers and foreign keys can be left out.
    Indexes are built afterwards, which is ten times faster."""
    audit = int(rows * AUDIT_SHARE)
    tasks = (rows - audit) // (LINES + 1)
    async with Database.open(url, size=1) as database, database.session() as session:
        indexes = [
            (row["name"], row["definition"])
            for row in await session.fetch(
                """
                SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition FROM pg_index
                WHERE indrelid IN ('tasks'::regclass, 'audit'::regclass) AND NOT indisprimary
                """
            )
        ]
        await session.execute("SET synchronous_commit = off")
        await session.execute("SET session_replication_role = replica")
        await session.execute("SET maintenance_work_mem = '1GB'")
        for name, _ in indexes:
            await session.execute(f"DROP INDEX {name}")
        for sql, argument in ((FILL_TASKS, tasks), (FILL_LOGS, LINES), (FILL_AUDIT, audit)):
            await session.execute(sql, argument, timeout=3600)
        for _, definition in indexes:
            await session.execute(definition, timeout=3600)
        await session.execute("VACUUM ANALYZE", timeout=3600)
        await session.execute("CHECKPOINT", timeout=3600)
        size: str = await session.fetchval("SELECT pg_size_pretty(pg_database_size(current_database()))")
        return size


class Writers:
    """People who change something at a steady pace, and how long each change took."""

    def __init__(self, database: Database) -> None:
        self.taken: list[float] = []
        self._database = database

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(WRITERS):
                nursery.start_soon(self._write, number * PACE / WRITERS)

    async def _write(self, offset: float) -> None:
        enter_lane(Lane.ORDERS)
        await trio.sleep(offset)
        due = trio.current_time()
        while True:
            began = perf_counter()
            await self._database.transact(self._change)
            self.taken.append(perf_counter() - began)
            due = max(due + PACE, trio.current_time())
            await trio.sleep_until(due)

    async def _change(self, tx: Transaction) -> None:
        task = await tx.fetchval(
            """
            INSERT INTO tasks (op, status, resource_kind, resource_id, resource_name, caller, ended_at, deadline_at)
            VALUES ('vm.start', 'succeeded', 'vm', $1, 'machine', '{}', now(), now()) RETURNING id
            """,
            uuid4(),
        )
        await tx.execute("INSERT INTO task_events (task_id, position, message) VALUES ($1, 1, 'begun')", task)
        await tx.execute(
            """
            INSERT INTO audit (actor, role, via, request_id, operation, target_kind, target_id, outcome)
            VALUES ('writer', 'customer', 'token', '', 'vm.start', 'vm', $1, 'done')
            """,
            str(task),
        )
        await append(tx, NewEvent(kind=EventKind.ACTIVITY, subject=str(task), payload={}))


@asynccontextmanager
async def writing(database: Database) -> AsyncIterator[Writers]:
    writers = Writers(database)
    async with trio.open_nursery() as nursery:
        await nursery.start(EventLog(database).run)
        nursery.start_soon(counts.run, database, COUNTED)
        nursery.start_soon(writers.run)
        yield writers
        nursery.cancel_scope.cancel()


async def prepare(folder: Path, rows: int) -> None:
    async with embedded(folder / "postgresql") as url:
        async with Database.open(url, size=2) as database:
            await migrate(database)
        began = perf_counter()
        size = await fill(url.replace(urlsplit(url).username or "", "postgres", 1), rows)
    print(f"{rows:,} rows, {size}, made in {perf_counter() - began:,.0f} s", flush=True)


async def measure(folder: Path) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("meanwhile", "rows", "seconds", "rows/s", "a change: p50", "p99", "max"):
        table.add_column(heading, justify="left" if heading == "meanwhile" else "right")
    async with (
        embedded(folder / "postgresql") as url,
        Database.open(url, lanes={Lane.READING: 8, Lane.ORDERS: 8, Lane.BACKGROUND: 4}) as database,
        writing(database) as writers,
    ):

        async def nothing() -> int:
            await trio.sleep(ALONE_SECONDS)
            return 0

        async def tasks_and_logs() -> int:
            return (LINES + 1) * await remove_old_tasks(database, KEEP)

        works: dict[str, Callable[[], Awaitable[int]]] = {
            "nothing is removed": nothing,
            "tasks and logs": tasks_and_logs,
            "audit, exported first": partial(archive_audit, database, folder / "audit", KEEP),
            "nothing, afterwards": nothing,
        }
        await Sealer(database).round()
        await trio.sleep(2)
        for name, work in works.items():
            writers.taken.clear()
            began = perf_counter()
            removed = await work()
            seconds = perf_counter() - began
            times = sorted(writers.taken)
            table.add_row(
                name,
                f"{removed:,}",
                f"{seconds:,.0f}",
                f"{removed / seconds:,.0f}",
                *(f"{times[int(len(times) * share)] * 1e3:,.1f} ms" for share in (0.5, 0.99)),
                f"{times[-1] * 1e3:,.0f} ms",
            )
    Console(highlight=False).print(table)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench retention", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="in all; ten million take some 5 GB (10000000)")
    parser.add_argument("--data", type=Path, help="made here, and kept; rows that are here already are measured")
    parser.add_argument("--prepare", action="store_true", help="only make the rows")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as made:
        folder: Path = chosen.data or Path(made)
        if not (folder / "postgresql").exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
            trio.run(prepare, folder, chosen.rows)
        if not chosen.prepare:
            trio.run(measure, folder)
