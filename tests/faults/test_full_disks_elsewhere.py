"""Full disks that are not the controller's: that of a PostgreSQL of one's own, and that of a node's agent."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import trio

from svc_actors.store import Database, embedded
from svc_common.errors import ServiceError
from tests.support.deployment import POLL, Api, Deployment, open_deployment
from tests.support.figures import report_figure
from tests.support.full_disks import BACK_WITHIN, Work, until_changes_are_taken, until_refused, working
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB_OF_DISK = 160
LITTLE_LOG = {"min_wal_size": "32MB", "max_wal_size": "48MB"}


@asynccontextmanager
async def own_server(*, log_elsewhere: bool) -> AsyncIterator[tuple[str, SmallDisk]]:
    """A PostgreSQL of the operator's, started again when it ends, on a small disk: its service's URL, and the disk."""
    folder = Path(tempfile.mkdtemp(prefix="svc-own-", dir="/var/lib"))
    folder.chmod(0o755)
    try:
        with small_disk(folder / "disk", MIB_OF_DISK) as disk:
            server = folder / "disk" / "postgresql"
            async with embedded(server):
                pass
            if log_elsewhere:
                # mv keeps the owner.
                await trio.run_process(["mv", str(server / "cluster" / "pg_wal"), str(folder / "wal")])
                (server / "cluster" / "pg_wal").symlink_to(folder / "wal")
            async with embedded(server, settings=LITTLE_LOG) as url:
                yield url, disk
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def deployed(url: str) -> AsyncIterator[Deployment]:
    owner = {"SVC_DATABASE_OWNER_URL": url, "SVC_DATABASE_URL": url.replace("//svc_owner@", "//svc@")}
    async with open_deployment(nodes=1, seed=93, environment=owner) as house:
        yield house


async def acknowledged(work: Work, house: Deployment) -> bool:
    async with house.api() as api:
        return work.acknowledged <= {project["id"] for project in await api.everything("/projects")}


async def test_a_full_disk_of_an_external_server_refuses_changes_while_reading_goes_on_and_heals() -> None:
    async with own_server(log_elsewhere=True) as (url, disk), deployed(url) as house, house.api() as api:
        controller = house.stack.controller.process
        async with working(api) as work:
            await until_changes_are_taken(work)

            disk.fill()
            await until_refused(work, within=60)
            reads = work.reads
            await trio.sleep(5)  # the disk stays full for a while; nothing is asserted by it
            during, refused_reads = work.reads - reads, work.reads_refused

            disk.empty()
            took = await until_changes_are_taken(work)

        report_figure(f"external PostgreSQL, data disk full: changes taken {took:.1f} s after there was space")
        assert any("disk" in refusal for refusal in work.refused)
        assert during > 20
        assert refused_reads == 0
        assert house.stack.controller.process is controller
        assert house.stack.controller.running()
        assert await acknowledged(work, house)
        await house.order(api, "after")
        await house.check_truth(api)


async def test_an_external_server_that_ends_for_want_of_room_for_its_log_is_waited_for() -> None:
    """With its log on the full disk PostgreSQL ends itself (PANIC), and whatever runs it starts it again."""
    async with own_server(log_elsewhere=False) as (url, disk), deployed(url) as house, house.api() as api:
        controller = house.stack.controller.process
        async with working(api) as work:
            await until_changes_are_taken(work)

            disk.fill()
            await use_up_log(url)
            await until_refused(work, within=60)
            await trio.sleep(5)  # the disk stays full for a while; nothing is asserted by it

            disk.empty()
            took = await until_changes_are_taken(work, within=2 * BACK_WITHIN)

        report_figure(f"external PostgreSQL, log disk full: changes taken {took:.1f} s after there was space")
        assert house.stack.controller.process is controller
        assert house.stack.controller.running()
        assert await acknowledged(work, house)


async def use_up_log(url: str) -> None:
    """Have the server come to the end of the segments of its log that it had made ahead: it ends there."""
    with trio.fail_after(60), suppress(ServiceError):
        async with Database.open(url.replace("//svc_owner@", "//postgres@"), size=1) as database:
            while True:
                await database.fetchval("SELECT pg_switch_wal()")
                await database.execute("CREATE TEMPORARY TABLE IF NOT EXISTS filler (number int)")
                await database.execute("DROP TABLE filler")


@contextmanager
def little_room(folder: Path, aside: Path) -> Iterator[SmallDisk]:
    """What lies in `folder` moves to a small file system of its own."""
    folder.rename(aside)
    folder.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(folder)), check=True)
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield SmallDisk(folder)
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


async def test_an_agent_whose_disk_is_full_does_nothing_by_halves_says_why_and_goes_on_once_there_is_space() -> None:
    """A short record may still fit where the file system has given the journal a block: then the order is held until
    its end can be written as well."""
    async with open_deployment(nodes=1, seed=94) as house, house.api() as api:
        vm = (await house.order(api, "web-1"))["vm"]
        await house.settled(api, 30)
        await house.fleet.kill()
        await until_online(house, api, False)
        [node] = (house.stack.folder / "nodes").glob("sim-*")
        with little_room(node, house.stack.folder / "aside") as disk:
            house.fleet.start()
            await until_online(house, api, True)
            before = (node / "simulated.json").read_bytes()
            disk.fill()

            orders = [
                await api.call("POST", f"/vms/{vm['id']}/shutdown", {}),
                (await house.order(api, "web-2"))["task"],
            ]
            await trio.sleep(5)  # the disk stays full for a while; nothing is asserted by it
            untouched = (node / "simulated.json").read_bytes() == before
            online = await house.all_online(api)
            shown = await api.call("GET", f"/vms/{vm['id']}")

            disk.empty()
            began = trio.current_time()
            refused = [await ended(house, order["id"]) for order in orders]
            again = await ended(house, (await api.call("POST", f"/vms/{vm['id']}/shutdown", {}))["id"])
            took = trio.current_time() - began
            report_figure(f"agent's disk full: an order succeeded {took:.1f} s after there was space")
            await house.order(api, "web-3")
            statuses = await house.check_truth(api)
            await house.fleet.kill()

    for task in refused:
        assert task["status"] == "failed"
        assert "No space left on device" in str(task["error_message"])
    assert untouched
    assert online
    assert shown["status"] == "running"
    assert again["status"] == "succeeded"
    assert took < 2 * BACK_WITHIN
    assert statuses == {"web-1": "stopped", "web-2": "failed", "web-3": "running"}


async def until_online(house: Deployment, api: Api, online: bool) -> None:
    with trio.fail_after(60):
        while await house.all_online(api) is not online:
            await trio.sleep(POLL)


async def ended(house: Deployment, task_id: str) -> dict[str, object]:
    async with house.api() as api:
        with trio.fail_after(60):
            while True:
                task = await api.call("GET", f"/tasks/{task_id}")
                if task["status"] in ("succeeded", "failed", "cancelled"):
                    return dict(task)
                await trio.sleep(POLL)
