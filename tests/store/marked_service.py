"""A service that marks its commits, on a database that may lose some of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

from svc_actors.store import Database, marked
from svc_actors.store.remembered_keys import Key

LOST = "UPDATE commit_marks SET value = value - 1"


class Steps:
    """What a service is asked to do on a database of the past."""

    def __init__(self) -> None:
        self.taken: list[tuple[datetime, list[Key]]] = []

    async def __call__(self, as_of: datetime, keys: Sequence[Key]) -> None:
        self.taken.append((as_of, list(keys)))


async def change(database: Database, name: str) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO locations (name) VALUES ($1)", name)


@asynccontextmanager
async def service(database_url: str, folder: Path, steps: Steps) -> AsyncIterator[Database]:
    async with Database.open(database_url, size=4) as database, marked(database, folder, steps):
        yield database


async def started(database_url: str, folder: Path) -> list[tuple[datetime, list[Key]]]:
    steps = Steps()
    async with service(database_url, folder, steps):
        pass
    return steps.taken
