"""PostgreSQL killed, its backends killed, its connections used up, while people work."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from svc_actors.store import Database
from tests.faults.conftest import Extent
from tests.support.deployment import ENDED, Api, Deployment, Refused, Unavailable, open_deployment
from tests.support.steady_load import WINDOW, SteadyLoad

pytestmark = [pytest.mark.system, pytest.mark.isolated]

LOCK_SECONDS = 10.0
CROWD = 40


@dataclass
class Load(SteadyLoad):
    """People who start, stop and list machines all the time, and what they were told."""

    house: Deployment = field(kw_only=True)
    acknowledged: set[str] = field(default_factory=set)
    """Ids of the tasks that were answered with."""

    async def work(self, api: Api, number: int) -> None:
        """Orders and lists in turn."""
        created = await self.house.order(api, f"load-{number}")
        self.acknowledged.add(created["task"]["id"])
        machine = f"/vms/{created['vm']['id']}"
        verbs = itertools.cycle(("shutdown", "start"))
        verb = next(verbs)
        ordering = itertools.cycle((True, False))

        async def ask() -> None:
            nonlocal verb
            if next(ordering):
                if await self.order(api, f"{machine}/{verb}"):
                    verb = next(verbs)
                return
            try:
                await api.call("GET", "/vms", page_size=20)
                self.count()
            except Unavailable:
                self.unavailable += 1

        await self.person(number, ask)

    async def order(self, api: Api, path: str) -> bool:
        """Whether the machine is, or will be, as ordered."""
        try:
            task = await api.call("POST", path, {})
        except Unavailable:
            self.unavailable += 1
            return False
        except Refused as refusal:
            # Busy with the order before, or already so because an unanswered order was carried out.
            if refusal.code not in ("conflict", "not_ready"):
                raise
            return bool(refusal.code == "not_ready")
        self.acknowledged.add(task["id"])
        self.count()
        return True


@asynccontextmanager
async def working(house: Deployment, api: Api) -> AsyncIterator[Load]:
    load = Load(house=house)
    async with load.carried(partial(load.work, api)):
        yield load


async def test_no_acknowledged_order_is_lost_when_postgresql_dies_under_load(extent: Extent) -> None:
    async with open_deployment(nodes=2, seed=51) as house, house.api() as api:
        slow = []
        killed: set[int] = set()
        async with working(house, api) as load:
            for outage in range(extent.outages):
                await trio.sleep(WINDOW + house.random.uniform(0.0, 0.5))
                usual = load.rate()
                killed.add(house.kill_postmaster())
                if not await load.outage(outage, usual):
                    slow.append(outage)
        assert slow == []
        await house.check_truth(api)
        tasks = {task["id"]: task for task in await api.everything("/tasks")}
        assert load.acknowledged <= tasks.keys()
        assert {task["status"] for task in tasks.values()} <= ENDED
        assert len(killed - {0}) == extent.outages, "a PostgreSQL of its own was killed for each outage"
        assert house.postmaster not in killed
        recorded = await activity_of_machines(api)
        assert {tasks[task]["resource_id"] for task in load.acknowledged} <= recorded
        await background_lives(house, api)


async def test_killed_backends_are_replaced_and_nobody_gets_a_wrong_answer() -> None:
    async with open_deployment(nodes=2, seed=52) as house, house.api() as api:
        async with (
            working(house, api) as load,
            Database.open(house.database_url("postgres", "postgres"), size=1) as administration,
        ):
            for _ in range(8):
                await trio.sleep(house.random.uniform(0.05, 0.3))
                await administration.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'svc' AND random() < 0.7"
                )
            _, rate = await load.back(1)
            assert rate > 0
        await house.check_truth(api)
        tasks = {task["id"] for task in await api.everything("/tasks")}
        assert load.acknowledged <= tasks
        await background_lives(house, api)


async def test_used_up_connections_are_unavailable_and_nothing_worse() -> None:
    async with open_deployment(nodes=1, seed=53) as house, house.api() as api:
        await house.order(api, "first")
        answers: list[str] = []

        async def ask() -> None:
            try:
                await api.call("GET", "/vms")
                answers.append("answered")
            except Unavailable:
                answers.append("unavailable")

        async with Database.open(house.database_url(), size=1) as database, trio.open_nursery() as nursery:
            async with database.transaction() as tx:
                await tx.execute("LOCK TABLE vms IN ACCESS EXCLUSIVE MODE")
                for _ in range(CROWD):
                    nursery.start_soon(ask)
                await trio.sleep(LOCK_SECONDS)
        assert answers.count("unavailable") > 0
        assert len(answers) == CROWD
        await api.call("GET", "/vms")
        await house.check_truth(api)
        await background_lives(house, api)


async def activity_of_machines(api: Api) -> set[str]:
    """Ids of the machines whose activity tells of orders."""
    machines = await api.everything("/vms")
    return {vm["id"] for vm in machines if (await api.insist("GET", f"/vms/{vm['id']}/activity"))["items"]}


async def background_lives(house: Deployment, api: Api) -> None:
    """Events flow, nodes are asked, tasks are worked: nothing that runs in the background has died."""
    [node, *_] = await api.everything("/nodes")
    opened, seen = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.watch_events, "task", opened, seen)
        await opened.wait()
        task = await api.insist("POST", f"/nodes/{node['id']}/inventory", {})
        with trio.fail_after(30):
            await seen.wait()
            while (await api.insist("GET", f"/tasks/{task['id']}"))["status"] != "succeeded":
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
