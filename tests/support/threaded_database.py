"""A database for rules of a state machine, which are not asynchronous: a Trio in a thread of its own drives it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from svc_actors.store import Database, Transaction

T = TypeVar("T")


class Crash(Exception):  # noqa: N818 - not an error: the power fails
    """The controller dies before the commit."""


@dataclass
class ThreadedDatabase:
    """A database in a thread with its own Trio, for rules, which are not asynchronous."""

    token: trio.lowlevel.TrioToken
    database: Database

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        return trio.from_thread.run(work, self.database, trio_token=self.token)

    def transact(self, work: Callable[[Transaction], Awaitable[T]], *, crash: bool = False) -> T | None:
        """The work in a transaction; with `crash` the controller dies before it is committed."""

        async def transact(database: Database) -> T:
            async with database.transaction() as tx:
                done = await work(tx)
                if crash:
                    raise Crash
                return done

        try:
            return self.run(transact)
        except Crash:
            return None


@contextmanager
def opened(url: str, prepare: Callable[[Database], Awaitable[T]]) -> Iterator[tuple[ThreadedDatabase, T]]:
    """The bench of a database, and what `prepare` made in it."""
    started: queue.Queue[tuple[ThreadedDatabase, T, trio.Event] | BaseException] = queue.Queue()

    async def serve() -> None:
        async with Database.open(url, size=2) as database:
            prepared = await prepare(database)
            stop = trio.Event()
            started.put((ThreadedDatabase(trio.lowlevel.current_trio_token(), database), prepared, stop))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(serve)
        except BaseException as error:  # noqa: BLE001  # handed to the thread that waits for it
            started.put(error)

    thread = threading.Thread(target=run, name="bench")
    thread.start()
    outcome = started.get()
    if isinstance(outcome, BaseException):
        raise outcome
    bench, prepared, stop = outcome
    try:
        yield bench, prepared
    finally:
        bench.token.run_sync_soon(stop.set)
        thread.join()
