"""A standby of PostgreSQL takes over that lacks the last commits, while people order machines and sites."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from svc.cli.failures import first_cause
from svc.service.panel.core import step_back
from svc_actors.store import (
    PANEL_SCHEMA,
    Database,
    DatabaseUrls,
    SteppedBackError,
    exclusive,
    marked,
    prepare_schema,
)
from svc_webhost.folders import HostFolders
from tests.faults.conftest import Extent
from tests.panel.jobs.work import queue
from tests.support.deployment import POLL, Api, Deployment, Refused, Unavailable, open_deployment
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_sites import site_row
from tests.support.replicated import Replicated, replicated

pytestmark = [pytest.mark.system, pytest.mark.isolated]

PEOPLE = 3
LOST = 2
"""Orders that are carried out in each round while the standby is cut off."""
MINUTE = 60.0


@dataclass
class Orders:
    """Machines that people order all the time; each is named for the idempotency key of its order."""

    house: Deployment
    api: Api
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Machines' ids by key."""
    refused: set[str] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def people(self, paused: list[bool]) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(PEOPLE):
                nursery.start_soon(self.person, paused)

    async def person(self, paused: list[bool]) -> None:
        while True:
            if not paused:
                await self.order(f"m-{next(self.numbers)}")
            await trio.sleep(POLL)

    async def order(self, key: str) -> None:
        """Until it is answered, under the same key."""
        while True:
            try:
                answer = await self.api.call("POST", "/vms", self.house.wish(key))
            except Unavailable:
                await trio.sleep(POLL)
            except Refused as refusal:
                if refusal.code != "conflict":
                    raise
                self.refused.add(key)
                return
            else:
                self.acknowledged[key] = answer["vm"]["id"]
                return


@dataclass
class Truth:
    """What hosts have, asked of nobody else."""

    house: Deployment

    def machines(self) -> dict[str, tuple[str, str]]:
        """Name and host, by id."""
        return {
            vm_id: (machine["name"], host)
            for host, state in self.house.hosts().items()
            for vm_id, machine in state["machines"].items()
        }

    def check(self) -> None:
        """No address and no key in two hands."""
        hosts = self.house.hosts()
        carried = Counter(
            address
            for state in hosts.values()
            for vm_id, network in state["network"]["networks"].items()
            if vm_id in state["machines"]
            for address in network["carried"]
        )
        assert [address for address, times in carried.items() if times > 1] == []
        names = Counter(machine["name"] for state in hosts.values() for machine in state["machines"].values())
        assert [name for name, times in names.items() if times > 1] == []
        ids = Counter(vm_id for state in hosts.values() for vm_id in state["machines"])
        assert [vm_id for vm_id, times in ids.items() if times > 1] == []


async def supervise(house: Deployment, ends: list[int]) -> None:
    """Start the controller again whenever it has ended, as systemd does."""
    while True:
        if not house.stack.controller.running():
            process = house.stack.controller.process
            assert process is not None
            ends.append(process.returncode)
            house.stack.controller.start()
        await trio.sleep(POLL)


async def watch(truth: Truth) -> None:
    while True:
        truth.check()
        await trio.sleep(POLL)


async def until_built(orders: Orders, truth: Truth, before: set[str]) -> set[str]:
    """Ids of machines that were ordered and built since `before`."""
    while True:
        new = set(orders.acknowledged.values()) - before
        built = new & truth.machines().keys()
        if len(built) >= LOST:
            return built
        await trio.sleep(POLL)


async def orphans(api: Api) -> dict[str, dict[str, Any]]:
    return {orphan["id"]: orphan for orphan in await api.insist("GET", "/orphans")}


async def recorded(pair: Replicated) -> set[str]:
    async with Database.open(pair.url("postgres", pair.primary), size=1) as database:
        return {str(row["id"]) for row in await database.fetch("SELECT id FROM vms")}


async def restorations(pair: Replicated) -> int:
    async with Database.open(pair.url("postgres", pair.primary), size=1) as database:
        return int(await database.fetchval("SELECT count(*) FROM restorations"))


async def decide(house: Deployment, api: Api) -> None:
    """Have each orphan adopted, or discarded, until nothing is left to decide."""
    while True:
        for vm_id in await orphans(api):
            adopt = house.random.random() < 0.5
            path, body = ("adopt", {"project_id": house.project_id}) if adopt else ("discard", {})
            try:
                await api.call("POST", f"/orphans/{vm_id}/{path}", body)
            except (Unavailable, Refused):
                continue  # Not yet, or it differs by nothing but a moment: it is asked for again.
        open_alerts = await api.everything("/alerts")
        if not any(alert["key"] == "controller-restored" and alert["closed_at"] is None for alert in open_alerts):
            return
        await trio.sleep(POLL)


async def test_what_a_failover_loses_is_given_to_nobody_and_shows_as_an_orphan(extent: Extent) -> None:
    ends: list[int] = []
    async with (
        replicated() as pair,
        open_deployment(nodes=2, seed=57, environment=pair.environment) as house,
        house.api() as api,
        trio.open_nursery() as nursery,
    ):
        truth, orders, paused = Truth(house), Orders(house, api), [False]
        paused.clear()
        nursery.start_soon(supervise, house, ends)
        nursery.start_soon(watch, truth)
        nursery.start_soon(orders.people, paused)
        # A planned switchover loses nothing, and nothing is closed.
        await until_built(orders, truth, set())
        await pair.fail_over(planned=True)
        await until_built(orders, truth, set(orders.acknowledged.values()))
        assert ends == []
        assert await restorations(pair) == 0
        for round_ in range(1, extent.failovers + 1):
            await pair.make_standby()
            await pair.until_same()
            await pair.cut_off()
            built = await until_built(orders, truth, set(orders.acknowledged.values()))
            before = dict(orders.acknowledged)
            await pair.fail_over()
            lost = built - await recorded(pair)
            assert lost, "the round has lost nothing"
            with trio.fail_after(MINUTE):
                while not lost <= (await orphans(api)).keys():
                    await trio.sleep(POLL)
            assert len(ends) == round_
            assert await restorations(pair) == round_
            # Whoever asks again under a key that was lost gets no second machine.
            for key, vm_id in before.items():
                if vm_id in lost:
                    await orders.order(key)
                    assert key in orders.refused
            with trio.fail_after(MINUTE):
                await decide(house, api)
                await until_built(orders, truth, set(orders.acknowledged.values()))
        paused.append(True)
        truth.check()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def panel_core(pair: Replicated, folder: Path) -> AsyncIterator[PanelHarness]:
    """The panel's core over the address of the primary, with a server that remembers what it is told."""
    async with (
        Database.open(pair.url("svc"), size=8) as database,
        exclusive(database, "panel"),
        marked(database, folder, partial(step_back, database, HostFolders(folder))),
        open_panel(database, folder, loops=None) as panel,
    ):
        yield panel


async def add_site(panel: PanelHarness, owner: UUID, domain: str) -> int:
    """Its record, and what stands for its files."""
    site = await site_row(panel.database, owner, domain)
    number = int(await panel.database.fetchval("SELECT number FROM sites WHERE id = $1", site))
    (panel.services.config.folders.sites / f"s{number}").mkdir(parents=True)
    return number


async def test_a_failover_of_the_panels_database_gives_no_number_and_no_job_twice(
    extent: Extent, tmp_path: Path
) -> None:
    numbers: list[int] = []
    jobs: list[int] = []

    async def lose(round_: int) -> None:
        async with panel_core(pair, tmp_path) as panel:
            await pair.cut_off()
            numbers.append(await add_site(panel, owner, f"lost-{round_}.example.com"))
            jobs.append(await queue(panel.database, "updates.look", "look"))
            await pair.fail_over()
            await trio.sleep_forever()

    async with replicated() as pair:
        owner_url, service_url = pair.url("svc_owner"), pair.url("svc")
        await prepare_schema(DatabaseUrls(owner_url, service_url), PANEL_SCHEMA)
        async with panel_core(pair, tmp_path) as panel:
            owner = await panel.person("ada@example.com")
        for round_ in range(extent.failovers):
            if round_:
                await pair.make_standby()
            await pair.until_same()
            with trio.fail_after(MINUTE), pytest.raises(ExceptionGroup) as ended:
                await lose(round_)
            assert isinstance(first_cause(ended.value), SteppedBackError)
            async with panel_core(pair, tmp_path) as panel:
                numbers.append(await add_site(panel, owner, f"new-{round_}.example.com"))
                jobs.append(await queue(panel.database, "updates.look", "look"))
                [row] = await panel.database.fetch("SELECT message FROM alerts WHERE key = 'sites-unrecorded'")
                assert f"s{numbers[-2]}" in row["message"]
    assert len(set(numbers)) == 2 * extent.failovers
    assert len(set(jobs)) == 2 * extent.failovers
