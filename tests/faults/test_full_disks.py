"""The controller's disk filled to the last block while people work: an outage of changes, and of no more."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.support.deployment import POLL, Api, Deployment, Unavailable, open_deployment
from tests.support.small_disk import SmallDisk

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB_OF_DISK = 400
BACK_WITHIN = 10.0
ALERT = "disk:database"


class Work:
    """Somebody who makes projects and reads lists all the time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.acknowledged: set[str] = set()
        self.refused: list[str] = []
        self.reads = 0
        self.reads_refused = 0

    async def change(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                made = await self._api.call("POST", "/projects", {"name": f"project-{number}"})
                self.acknowledged.add(made["id"])
            except Unavailable as refusal:
                self.refused.append(str(refusal))
            await trio.sleep(POLL / 2)

    async def read(self) -> None:
        while True:
            try:
                await self._api.call("GET", "/projects", page_size=1)
                self.reads += 1
            except Unavailable:
                self.reads_refused += 1
            await trio.sleep(POLL / 2)


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[Work]:
    work = Work(api)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.change)
        nursery.start_soon(work.read)
        yield work
        nursery.cancel_scope.cancel()


async def alert(api: Api) -> dict[str, Any] | None:
    return next((each for each in await api.everything("/alerts") if each["key"] == ALERT), None)


async def until_refused(work: Work) -> None:
    with trio.fail_after(10):
        while not work.refused:
            await trio.sleep(POLL)


async def until_changes_are_taken(work: Work) -> float:
    """How long it took."""
    known, began = len(work.acknowledged), trio.current_time()
    with trio.fail_after(BACK_WITHIN):
        while len(work.acknowledged) == known:
            await trio.sleep(POLL)
    return trio.current_time() - began


def disk_of(house: Deployment) -> SmallDisk:
    assert house.disk is not None
    return house.disk


async def test_a_full_disk_refuses_changes_while_reading_goes_on_and_heals_by_itself() -> None:
    async with open_deployment(nodes=1, seed=91, disk_mib=MIB_OF_DISK) as house, house.api() as api:
        disk = disk_of(house)
        controller = house.stack.controller.process
        async with working(api) as work:
            await until_changes_are_taken(work)

            disk.fill()
            await until_refused(work)
            reads = work.reads
            with trio.fail_after(20):
                while (raised := await alert(api)) is None or "refused" not in raised["message"]:
                    await trio.sleep(POLL)
            await trio.sleep(5)  # the disk stays full for a while; nothing is asserted by it
            during = work.reads - reads
            denied = await api.http.post("/api/v1/projects", json={"name": "denied"})
            overview = await api.call("GET", "/overview")

            disk.empty()
            took = await until_changes_are_taken(work)
            with trio.fail_after(BACK_WITHIN):
                while (raised := await alert(api)) is not None and "refused until" in raised["message"]:
                    await trio.sleep(POLL)

        assert (denied.status_code, denied.json()["error"]["code"]) == (503, "unavailable")
        assert denied.headers["retry-after"] == "5"
        assert overview["disk"]["changes_refused"] is True
        assert during > 20
        assert work.reads_refused == 0
        assert took < BACK_WITHIN
        assert house.stack.controller.process is controller
        assert house.stack.controller.running()
        assert work.acknowledged <= {project["id"] for project in await api.everything("/projects")}
        order = await house.order(api, "after")
        await house.check_truth(api)
        assert order["vm"]["name"] == "after"


async def test_a_server_that_dies_on_the_full_disk_is_started_from_the_reserve_and_serves_reads() -> None:
    async with open_deployment(nodes=1, seed=92, disk_mib=MIB_OF_DISK) as house, house.api() as api:
        disk = disk_of(house)
        async with working(api) as work:
            await until_changes_are_taken(work)

            disk.fill()
            await until_refused(work)
            os.kill(house.postmaster, signal.SIGKILL)
            await trio.sleep(1)  # long enough for it to be seen dead
            reads = work.reads
            with trio.fail_after(20):
                while work.reads < reads + 20:
                    await trio.sleep(POLL)
            free_while_full = disk.free

            disk.empty()
            took = await until_changes_are_taken(work)

        assert free_while_full < 64 * 2**20
        assert took < BACK_WITHIN
        assert house.stack.controller.running()
        assert work.acknowledged <= {project["id"] for project in await api.everything("/projects")}
        assert (house.stack.controller_data / "postgresql" / "reserve").stat().st_size == 64 * 2**20
