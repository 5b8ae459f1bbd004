"""Scheduled tasks that a test plays: what ran is recorded, and ends as the test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from svc_webhost.site_tasks import SiteScript, SiteVisit, Take
from tests.support.changes import Changes

Task = SiteScript | SiteVisit
Act = Callable[[Task, Take], Awaitable[int]]


async def succeed(task: Task, take: Take) -> int:
    """As most tasks do."""
    await take(["done"])
    return 0 if isinstance(task, SiteScript) else 200


@dataclass
class RecordedTasks:
    """`act` plays each task; `ended` are those that were cut short."""

    act: Act = succeed
    begun: list[Task] = field(default_factory=list)
    cut: list[Task] = field(default_factory=list)
    told: Changes = field(default_factory=Changes)

    async def run(self, script: SiteScript, take: Take) -> int:
        return await self._play(script, take)

    async def visit(self, visit: SiteVisit, take: Take) -> int:
        return await self._play(visit, take)

    async def _play(self, task: Task, take: Take) -> int:
        self.begun.append(task)
        self.told.tell()
        try:
            return await self.act(task, take)
        except trio.Cancelled:
            self.cut.append(task)
            raise
