"""Watches the disk of a service's own database, for the service's composer.

Why: docs/decisions/0012-full-disks.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from svc_actors.disk_guard import DiskGuard
from svc_actors.store import URL_VARIABLE, Database, background_nursery, keep_running


@asynccontextmanager
async def disk_guard(data_dir: Path, environ: Mapping[str, str], *, goes_on: str) -> AsyncIterator[DiskGuard | None]:
    """Watches the disk of the embedded database server. None for an external server, whose disk is on another host."""
    if environ.get(URL_VARIABLE):
        yield None
        return
    guard = DiskGuard(data_dir / "postgresql", goes_on)
    async with background_nursery() as nursery:
        await nursery.start(guard.watch)
        yield guard


@asynccontextmanager
async def guarded(database: Database, disk: DiskGuard | None) -> AsyncIterator[None]:
    """Have the database refuse callers' changes while its disk is full. Operators get an alert before that."""
    async with background_nursery() as nursery:
        if disk is not None:
            nursery.start_soon(disk.guard, database)
            nursery.start_soon(keep_running, "alert of the disk", partial(disk.tell, database))
        yield
