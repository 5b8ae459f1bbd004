"""A controller lost and restored from its backup, with hosts that went on meanwhile."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio

from svc.cli.backup.restore import UNFINISHED
from svc.cli.client import Client
from svc.cli.compose import open_controller
from svc.cli.failures import Exit
from svc.controller.config import ControllerConfig
from svc_actors.store import Database, DatabaseStartError, reachable_urls
from svc_nodeagent.simulated import SimulatedHost
from svc_nodeagent.simulated_fleet import Fleet
from tests.cli.conftest import House, Terminal, opened_house
from tests.support.configuration import local_config

PASSPHRASE = "four words of an operator"
NODES = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the database's own account gets to, whatever other tests do to their folders."""
    with tempfile.TemporaryDirectory(prefix="svc-restore-") as path:
        yield Path(path)


class World:
    """A controller that is lost and restored, and a fleet that goes on whatever becomes of it."""

    def __init__(self, house: House, fleet: Fleet) -> None:
        self.house = house
        self.fleet = fleet

    def hosts(self) -> list[SimulatedHost]:
        found = [agent._host for agent in self.fleet.agents]
        assert all(isinstance(host, SimulatedHost) for host in found)
        return found  # type: ignore[return-value]

    def machines(self) -> dict[str, str]:
        """On all hosts together: the node of each, by id."""
        return {str(vm_id): host.hostname for host in self.hosts() for vm_id in host.machines}

    def carried(self) -> list[tuple[str, str]]:
        """Every address that a host carries, with its machine."""
        return sorted(
            (address, str(vm_id))
            for host in self.hosts()
            for vm_id, network in host.networks.networks.items()
            for address in network.carried
        )

    async def json(self, *arguments: str) -> Any:
        return (await self.house.ok(*arguments, "-o", "json")).json

    async def records(self) -> dict[str, Any]:
        return {vm["id"]: vm for vm in (await self.json("vm", "list", "--page-size", "100"))["items"]}

    async def create(self, names: Sequence[str]) -> None:
        """Machines that run, all ordered at once."""
        async with Client.open(self.house.profile) as client:
            [project] = (await client.call("GET", "/projects"))["items"]
            for name in names:
                body = {"name": name, "image": "tiny", "project_id": project["id"], "password": True}
                await client.call("POST", "/vms", body=body | {"vcpus": 1, "memory_mib": 128, "disk_gib": 1})

        async def running() -> bool:
            found = (await self.records()).values()
            return set(names) <= {vm["name"] for vm in found if vm["status"] == "running"}

        await self.until(running)

    async def carries(self, addresses: int) -> bool:
        await trio.lowlevel.checkpoint()
        return len(self.carried()) == addresses

    async def compared(self, orphans: int) -> bool:
        """Every host was heard, and so many machines await a decision."""
        return await online(self) and len(await self.json("node", "orphans")) == orphans

    async def agrees(self) -> bool:
        """No machine is on its way anywhere any more."""
        return {vm["status"] for vm in (await self.records()).values()} <= {"running", "stopped"}

    async def allocated(self, config: ControllerConfig) -> list[tuple[str, str]]:
        """As `carried`, by the records."""
        async with reachable_urls(config.data_dir, {}) as urls, Database.open(urls.service, size=1) as database:
            rows = await database.fetch(
                "SELECT address_text(ip) AS text, vm_id FROM allocations WHERE vm_id IS NOT NULL"
            )
        return sorted((row["text"], str(row["vm_id"])) for row in rows)

    async def until(self, holds: Callable[[], Any], seconds: float = 30) -> None:
        with trio.fail_after(seconds):
            while not await holds():
                await trio.sleep(0.05)  # another task's work; nothing is asserted by the pause


@asynccontextmanager
async def opened_world(config: ControllerConfig, folder: Path, nursery: trio.Nursery) -> AsyncIterator[World]:
    """The first controller, with its nodes online and an image."""
    async with opened_house(config, {}, folder) as house:
        house.environment |= {"SVC_CONTROLLER_DATA": str(config.data_dir), "SVC_BACKUP_PASSPHRASE": PASSPHRASE}
        fleet = Fleet(folder / "nodes", NODES)
        context = ssl.create_default_context(cadata=house.profile.trusted)
        headers = {"Authorization": f"Bearer {house.profile.token}"}
        async with httpx.AsyncClient(
            verify=context, headers=headers, timeout=20, base_url=f"{house.url}/api/v1"
        ) as client:
            await fleet.enrol(client, lambda name: None)
        await nursery.start(fleet.run)
        world = World(house, fleet)
        await world.until(lambda: online(world))
        await house.image()
        yield world


async def online(world: World) -> bool:
    return len((await world.json("node", "list", "--state", "online"))["items"]) == NODES


async def test_what_hosts_did_since_the_backup_is_neither_doubled_nor_lost(folder: Path) -> None:
    """Twenty machines: fifteen in the backup, of which three are deleted since, one has another address and one is shut
    down; and five that were made since."""
    config, kept = local_config(folder / "controller"), folder / "kept"
    kept.mkdir()
    old, new = [f"old-{number:02}" for number in range(15)], [f"new-{number}" for number in range(5)]
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs():
            async with opened_world(config, folder, nursery) as world:
                house = world.house
                await world.create(old)
                await house.ok("controller", "backup", "--to", str(kept))
                await world.create(new)
                for name in old[:3]:
                    await house.ok("vm", "delete", name, "--destroy-disks", "--yes", "--wait")
                await house.ok("vm", "attach-ip", old[13])
                await house.ok("vm", "shutdown", old[14], "--wait")
                await world.until(lambda: world.carries(18))
                truth, carried = world.machines(), world.carried()

            [archive] = kept.iterdir()
            restored = replace(config, data_dir=folder / "second")
            house.environment["SVC_CONTROLLER_DATA"] = str(restored.data_dir)
            done = await house.ok("controller", "restore", str(archive))
            async with open_controller(restored, {}):
                await world.until(lambda: world.compared(9))
                orphans = await world.json("node", "orphans")
                untouched = world.machines() == truth, world.carried() == carried
                await world.create(["fresh"])
                for name in old[:3]:
                    await house.ok("node", "discard", name, "--yes")
                for name in new:
                    await house.ok("node", "adopt", name, "--project", "default")
                await house.ok("node", "adopt", old[13])
                await world.until(lambda: world.compared(0))
                await world.until(world.agrees)
                records, addresses = await world.records(), await world.allocated(restored)
                hosts, carried_now = world.machines(), world.carried()
        nursery.cancel_scope.cancel()

    assert "Sessions ended" in done.out
    assert {(each["name"], each["kind"]) for each in orphans} == {
        *((name, "unknown") for name in new),
        *((name, "missing") for name in old[:3]),
        (old[13], "differing"),
    }
    assert untouched == (True, True), "nothing was made, removed or changed by itself"
    assert sorted(vm["name"] for vm in records.values()) == sorted([*old[3:], *new, "fresh"])
    assert records.keys() == hosts.keys(), "none is doubled, and none lost"
    assert addresses == carried_now
    assert len({address for address, _ in carried_now}) == len(carried_now) == 19
    assert truth.items() <= hosts.items()
    [stopped] = [vm for vm in records.values() if vm["status"] == "stopped"]
    assert stopped["name"] == old[14]


async def test_a_folder_that_is_in_use_and_an_archive_that_is_damaged_are_refused(folder: Path) -> None:
    terminal = Terminal(folder, {"SVC_BACKUP_PASSPHRASE": PASSPHRASE, "SVC_CONTROLLER_DATA": str(folder / "data")})
    archive = folder / "svc-controller-20261122T000000Z.age"
    archive.write_bytes(b"age-encryption.org/v1\n")

    damaged = await terminal.svc("controller", "restore", str(archive))
    (folder / "data").mkdir()
    (folder / "data" / "secret.key").touch()
    in_use = await terminal.svc("controller", "restore", str(archive))

    assert damaged.code == Exit.INVALID
    assert "is not restored" in damaged.err
    assert in_use.code == Exit.CONFLICT
    assert "is not empty" in in_use.err
    assert [path.name for path in (folder / "data").iterdir()] == ["secret.key"]


async def test_a_restore_that_was_interrupted_is_not_taken_for_a_controller(folder: Path) -> None:
    config = local_config(folder / "data")
    config.data_dir.mkdir()
    (config.data_dir / UNFINISHED).touch()

    with pytest.raises(DatabaseStartError, match="was interrupted"):
        async with open_controller(config, {}):
            pytest.fail("half a controller must not serve")
