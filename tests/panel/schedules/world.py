"""A panel with a site whose tasks a test plays, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import trio
from trio.testing import MockClock

from svc_actors.store import Database
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row
from tests.support.site_tasks import RecordedTasks, Task
from tests.support.webhooks import later

BEGIN = datetime(2026, 11, 22, 12, 0, 30, tzinfo=UTC)
"""What the panel's clock shows when the first panel of a test opens."""


@dataclass
class Held:
    """A task that goes on until it is let go."""

    release: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, task: Task, take: object) -> int:
        await self.release.wait()
        return 0


@dataclass
class ScheduleWorld:
    panel: PanelHarness
    tasks: RecordedTasks
    site: UUID
    ada: Client
    bob: Client

    async def create(self, **values: Any) -> dict[str, Any]:
        body = {"name": "tasks", "kind": "python", "path": "private/tasks.py", "cron": "*/5 * * * *", **values}
        answer = await self.ada.post(f"/sites/{self.site}/schedules", body)
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    async def runs(self, schedule: dict[str, Any]) -> list[dict[str, Any]]:
        """Newest first."""
        return cast(list[dict[str, Any]], (await self.ada.get(f"/schedules/{schedule['id']}/runs")).json())

    async def until_begun(self, count: int = 1) -> None:
        """So many tasks have been begun."""
        await self.tasks.told.until(lambda: len(self.tasks.begun) >= count)

    async def runs_once(self, schedule: dict[str, Any], *statuses: str) -> list[dict[str, Any]]:
        """Its runs, newest first, once their statuses are these."""
        with trio.fail_after(60):
            while True:
                found = await self.runs(schedule)
                if [run["status"] for run in found] == list(statuses):
                    return found
                await trio.sleep(0.005)

    async def pass_time(self, clock: MockClock, **duration: float) -> None:
        """`clock` is the fixture: only one that the test itself asks for is Trio's."""
        await later(clock, timedelta(**duration).total_seconds(), self.panel.database)


@asynccontextmanager
async def open_schedules(database: Database, folder: Path, *, at: datetime = BEGIN) -> AsyncIterator[ScheduleWorld]:
    """A panel; one of several in a row over the same database has the same site."""
    began = trio.current_time()
    tasks = RecordedTasks()
    host = replace(recorded_host(), tasks=tasks, clock=lambda: at + timedelta(seconds=trio.current_time() - began))
    async with open_panel(database, folder, host, loops=["jobs", "schedules", "web server"]) as panel:
        people = {row["email"]: row["id"] for row in await database.fetch("SELECT email, id FROM users")}
        ids = [people.get(email) or await panel.person(email) for email in ("ada@example.com", "bob@example.com")]
        site = await database.fetchval("SELECT id FROM sites")
        if site is None:
            site = await site_row(database, ids[0], "ada.example.com")
        ada, bob = [panel.program(await panel.token(user)) for user in ids]
        yield ScheduleWorld(panel, tasks, site, ada, bob)
