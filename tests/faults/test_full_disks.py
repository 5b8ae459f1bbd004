"""The controller's disk filled to the last block while people work: an outage of changes, and of no more."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import trio

from tests.support.deployment import POLL, Api, Deployment, open_deployment
from tests.support.full_disks import BACK_WITHIN, until_changes_are_taken, until_refused, working
from tests.support.small_disk import SmallDisk

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB_OF_DISK = 400
ALERT = "disk:database"


async def alert(api: Api) -> dict[str, Any] | None:
    return next((each for each in await api.everything("/alerts") if each["key"] == ALERT), None)


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
            with trio.fail_after(60):
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
            with trio.fail_after(60):
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
