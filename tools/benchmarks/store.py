"""B10, B12, B16: a cold start beside bare initdb and start, queries a second beside asyncpg on asyncio, and commits
that write an event beside commits that do not.

Run as `python -m tools.benchmarks.store`. Ours and the peer's turns alternate, and the median counts. Our queries go
through the pool and its checks, each with its deadline; asyncpg's run on a bare connection where there is one, and
through its pool, without its reset query, where there are eight.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import asyncpg
import trio

from svc_actors.store import Database, EventKind, EventLog, Lane, NewEvent, append, embedded, enter_lane, migrate
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.reach import server_account
from tools.benchmarks import Ratio

ROUNDS = 7
QUERIES = 8_000
STARTS = 5
WRITERS, COMMIT_ROUNDS, COMMIT_SECONDS = 16, 5, 2.0
QUERY = "SELECT $1::int"


async def query_with_trio(url: str, connections: int) -> float:
    """Queries a second through our pool, from as many tasks as there are connections."""
    async with Database.open(url, size=connections) as database:
        each = QUERIES // connections

        async def ask() -> None:
            for number in range(each):
                await database.fetchval(QUERY, number)

        async def everyone() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(connections):
                    nursery.start_soon(ask)

        await everyone()
        began = perf_counter()
        await everyone()
        return each * connections / (perf_counter() - began)


async def query_with_asyncio(url: str, connections: int) -> float:
    """The same with asyncpg on asyncio."""

    async def no_reset(_: object) -> None:
        return

    async with asyncpg.create_pool(url, min_size=connections, max_size=connections, reset=no_reset) as pool:
        each = QUERIES // connections
        only = await pool.acquire() if connections == 1 else None

        async def ask() -> None:
            for number in range(each):
                await (only or pool).fetchval(QUERY, number)

        async def everyone() -> None:
            await asyncio.gather(*(ask() for _ in range(connections)))

        await everyone()
        began = perf_counter()
        await everyone()
        rate = each * connections / (perf_counter() - began)
        if only is not None:
            await pool.release(only)
        return rate


def measure_queries() -> list[Ratio]:
    """B12. Rates, so more is better."""
    rows = []
    with _server() as url:
        for connections in (1, 8):
            ours, peer = [], []
            for _ in range(ROUNDS):
                ours.append(trio.run(query_with_trio, url, connections))
                peer.append(asyncio.run(query_with_asyncio(url, connections)))
            name = f"B12 queries on {connections} connection{'s' if connections > 1 else ''} : asyncpg on asyncio"
            rows.append(Ratio(name, median(ours), median(peer), "queries/s", goal=1.0, higher_is_better=True))
    return rows


async def start_ours(folder: Path) -> float:
    """Seconds from an empty folder to a migrated database that answers."""
    began = perf_counter()
    async with embedded(folder) as url, Database.open(url) as database:
        await migrate(database)
        return perf_counter() - began


def start_bare(folder: Path) -> float:
    """Seconds for initdb and pg_ctl start, as the same user."""
    account = server_account()
    user, group = (account.uid, account.gid) if account else (None, None)
    folder.mkdir()
    if account is not None:
        shutil.chown(folder, account.uid, account.gid)

    def run(program: str, *arguments: str) -> None:
        command = [str(PROGRAMS / program), "-D", str(folder / "cluster"), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", user=user, group=group)

    began = perf_counter()
    run("initdb", "--auth=trust")
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-h '' -k {folder}", "start")
    took = perf_counter() - began
    run("pg_ctl", "-w", "stop")
    return took


def measure_cold_start() -> Ratio:
    """B10. What our start takes longer than a bare one, beside the second it may: less is better."""
    longer = []
    for _ in range(STARTS):
        with _folder() as folder:
            ours = trio.run(start_ours, folder / "ours")
            longer.append(ours - start_bare(folder / "bare"))
    return Ratio("B10 cold start past initdb + start : 1 s", median(longer), 1.0, "s", goal=1.0, higher_is_better=False)


async def commit(url: str, *, events: bool, notify: bool = False) -> float:
    """Commits a second of sixteen writers, each on a row of its own, for some seconds; the event log runs beside. With
    `notify` each contains a NOTIFY, as the wake-up of those who read the events would be without announcements."""
    async with (
        Database.open(url, lanes={Lane.READING: 1, Lane.ORDERS: WRITERS, Lane.BACKGROUND: 2}) as database,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(EventLog(database).run)
        commits = 0

        async def write(row: int) -> None:
            nonlocal commits
            enter_lane(Lane.ORDERS)
            while True:
                async with database.transaction() as transaction:
                    await transaction.execute("UPDATE counter SET value = value + 1 WHERE id = $1", row)
                    if events:
                        await append(transaction, NewEvent(kind=EventKind.SYSTEM, payload={"row": row}))
                    if notify:
                        await transaction.execute("SELECT pg_notify('bench', '')")
                commits += 1

        for row in range(WRITERS):
            nursery.start_soon(write, row)
        await trio.sleep(COMMIT_SECONDS)
        nursery.cancel_scope.cancel()
    return commits / COMMIT_SECONDS


async def prepare_commits(url: str) -> None:
    async with Database.open(url, size=1) as database:
        await migrate(database)
        await database.execute("CREATE TABLE counter (id int PRIMARY KEY, value int NOT NULL)")
        await database.execute("INSERT INTO counter SELECT generate_series(0, $1::int), 0", WRITERS)


def measure_commits() -> list[Ratio]:
    """B16, with a flush of 2 ms, as a disk has that is not a RAM disk. Rates, so more is better."""
    with_events, without, notifying = [], [], []
    with _server({"commit_delay": "2000", "commit_siblings": "0"}) as url:
        trio.run(prepare_commits, url)
        for _ in range(COMMIT_ROUNDS):
            with_events.append(trio.run(partial(commit, url, events=True)))
            without.append(trio.run(partial(commit, url, events=False)))
            notifying.append(trio.run(partial(commit, url, events=True, notify=True)))
    name = f"B16 commits with an event, {WRITERS} writers"
    return [
        Ratio(f"{name} : without", median(with_events), median(without), "commits/s", 0.8, higher_is_better=True),
        Ratio(f"{name} : notifying", median(with_events), median(notifying), "commits/s", 5, higher_is_better=True),
    ]


def measure() -> list[Ratio]:
    return [measure_cold_start(), *measure_queries(), *measure_commits()]


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _server(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server for the length of the block, in a thread with a Trio of its own, so that any event loop may use it."""
    started: queue.Queue[tuple[str, trio.lowlevel.TrioToken, trio.Event]] = queue.Queue()

    async def serve(folder: Path) -> None:
        async with embedded(folder, settings=settings) as url:
            stop = trio.Event()
            started.put((url, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    with _folder() as folder, ThreadPoolExecutor(1) as executor:
        serving = executor.submit(trio.run, serve, folder / "postgresql")
        url, token, stop = started.get(timeout=60)
        try:
            yield url
        finally:
            token.run_sync_soon(stop.set)
            serving.result()


def main() -> None:
    for row in measure():
        print(f"{row.name}: {row.ours:,.2f} : {row.peer:,.2f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main()
