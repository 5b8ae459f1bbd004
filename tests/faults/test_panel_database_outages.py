"""The panel's own PostgreSQL killed, its backends killed, its connections used up, while people change their sites."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest
import trio

from svc_actors.store import Database
from tests.faults.conftest import Extent
from tests.support.deployment import Api, Unavailable, seeded
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.postgres_server import postmaster
from tests.support.steady_load import PEOPLE, WINDOW, SteadyLoad

pytestmark = [pytest.mark.system, pytest.mark.isolated]

LOCK_SECONDS = 10.0
CROWD = 40


@dataclass
class Load(SteadyLoad):
    """People who add redirects to their sites and list them all the time."""

    sites: list[str] = field(kw_only=True)
    """Ids, one of each person."""
    acknowledged: set[tuple[str, str]] = field(default_factory=set)
    """Redirects that were answered with, by site and path."""

    async def work(self, api: Api, number: int) -> None:
        site, places = self.sites[number], itertools.count()

        async def ask() -> None:
            place, odd = divmod(next(places), 2)
            try:
                if odd:
                    await api.call("GET", "/sites", page_size=20)
                else:
                    path = f"/old-{place}"
                    await api.call("POST", f"/sites/{site}/redirects", {"path": path, "target": "https://example.net/"})
                    self.acknowledged.add((site, path))
                self.count()
            except Unavailable:
                self.unavailable += 1

        await self.person(number, ask)

    async def lost(self, api: Api) -> set[tuple[str, str]]:
        """What was acknowledged and is not there."""
        kept = {
            (site, redirect["path"])
            for site in self.sites
            for redirect in await api.insist("GET", f"/sites/{site}/redirects")
        }
        return self.acknowledged - kept


@dataclass(frozen=True)
class Hosted:
    panel: PanelPrograms
    api: Api
    sites: list[str]

    @property
    def postmaster(self) -> int:
        return postmaster(self.panel.data / "postgresql")

    def database_url(self, role: str, database: str) -> str:
        return f"postgresql://{role}@/{database}?host={self.panel.data / 'postgresql' / 'socket'}"

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Load]:
        load = Load(sites=self.sites)
        async with load.carried(partial(load.work, self.api)):
            yield load

    async def background_lives(self, load: Load) -> None:
        """The web server is told of changes, what was acknowledged is served, and no loop has given up."""
        site, path = sorted(load.acknowledged)[0]
        domain = (await self.api.insist("GET", f"/sites/{site}"))["domain"]
        assert (await self.panel.visit(domain, path)).status_code == 301
        await self.api.insist("POST", f"/sites/{site}/suspend", {"suspended": True, "reason": "A drill."})
        assert (await self.panel.visit(domain)).status_code == 503
        with trio.fail_after(60):
            while await self.failing():
                await trio.sleep(0.1)  # The loops that had failed say that they work again.

    async def failing(self) -> list[str]:
        """Parts of the core that do not work. Other alerts may be about a machine that is busy with other tests."""
        keys = [alert["key"] for alert in await self.api.everything("/alerts")]
        return [key for key in keys if key.startswith(("loop:", "actor:"))]


@pytest.fixture
async def hosted() -> AsyncIterator[Hosted]:
    async with open_panel_programs() as panel:
        await panel.start()
        await panel.customer()
        sites = [(await panel.site(f"site{number}.example.com"))["id"] for number in range(PEOPLE)]
        transport = httpx.AsyncHTTPTransport(uds=str(panel.socket))
        async with httpx.AsyncClient(transport=transport, base_url="http://core", timeout=60) as http:
            yield Hosted(panel, Api(http), sites)


async def test_no_acknowledged_change_is_lost_when_postgresql_dies_under_load(hosted: Hosted, extent: Extent) -> None:
    random, slow, killed = seeded(54), [], set[int]()
    async with hosted.working() as load:
        for outage in range(extent.outages):
            await trio.sleep(WINDOW + random.uniform(0.0, 0.5))
            usual = load.rate()
            killed.add(hosted.postmaster)
            os.kill(hosted.postmaster, signal.SIGKILL)
            if not await load.outage(outage, usual):
                slow.append(outage)

    assert slow == []
    assert len(killed) == extent.outages, "a PostgreSQL of its own was killed for each outage"
    assert hosted.postmaster not in killed
    assert await load.lost(hosted.api) == set()
    await hosted.background_lives(load)


async def test_killed_backends_are_replaced_and_no_acknowledged_change_is_lost(hosted: Hosted) -> None:
    random = seeded(55)
    async with (
        hosted.working() as load,
        Database.open(hosted.database_url("postgres", "postgres"), size=1) as administration,
    ):
        for _ in range(8):
            await trio.sleep(random.uniform(0.05, 0.3))
            await administration.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'svc' AND random() < 0.7"
            )
        _, rate = await load.back(1)

    assert rate >= 1
    assert await load.lost(hosted.api) == set()
    await hosted.background_lives(load)


async def test_used_up_connections_are_unavailable_and_nothing_worse(hosted: Hosted) -> None:
    answers: list[str] = []

    async def ask() -> None:
        try:
            await hosted.api.call("GET", "/sites")
            answers.append("answered")
        except Unavailable:
            answers.append("unavailable")

    async with hosted.working() as load:
        async with (
            Database.open(hosted.database_url("svc_owner", "svc"), size=1) as database,
            trio.open_nursery() as nursery,
        ):
            async with database.transaction() as tx:
                await tx.execute("LOCK TABLE sites IN ACCESS EXCLUSIVE MODE")
                for _ in range(CROWD):
                    nursery.start_soon(ask)
                await trio.sleep(LOCK_SECONDS)
        _, rate = await load.back(1)

    assert len(answers) == CROWD
    assert answers.count("unavailable") > 0
    assert rate >= 1
    assert await load.lost(hosted.api) == set()
    await hosted.background_lives(load)
