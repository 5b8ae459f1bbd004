"""A controller lost and restored from its backup, with hosts that went on meanwhile."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
import trio

from svc.cli.compose import open_controller
from svc.controller.config import ControllerConfig
from svc_nodeagent.simulated import SimulatedHost
from svc_nodeagent.simulated_fleet import Fleet
from tests.cli.conftest import House, opened_house
from tests.support.stack import free_port

PASSPHRASE = "four words of an operator"
NODES = 3


def config_of(folder: Path) -> ControllerConfig:
    return ControllerConfig(
        data_dir=folder,
        public_host="127.0.0.1",
        bind_host="127.0.0.1",
        api_port=free_port(),
        gateway_port=free_port(),
        operations_port=free_port(),
        heartbeat_seconds=0.5,
    )


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


async def settled(world: World) -> bool:
    """Every host was compared with the records: a record is shown as missing only then, and addresses are given out."""
    alerts = (await world.json("alert", "list"))["items"]
    compared = [each for each in alerts if each["key"].startswith("orphans:")]
    return await online(world) and bool(compared) and len(await world.json("node", "orphans")) == 8


async def test_what_hosts_did_since_the_backup_is_neither_doubled_nor_lost(folder: Path) -> None:
    config, kept = config_of(folder / "controller"), folder / "kept"
    kept.mkdir()
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs():
            async with opened_world(config, folder, nursery) as world:
                house = world.house
                for number in range(15):
                    await house.machine(f"old-{number:02}", "--password", "--wait")
                await house.ok("controller", "backup", "--to", str(kept))
                before = await world.records()
                for number in range(5):
                    await house.machine(f"new-{number}", "--password", "--wait")
                for number in range(3):
                    await house.ok("vm", "delete", f"old-{number:02}", "--destroy-disks", "--yes", "--wait")
                await house.ok("vm", "shutdown", "old-14", "--wait")
                truth, carried = world.machines(), world.carried()

            [archive] = kept.iterdir()
            restored = replace(config, data_dir=folder / "second")
            house.environment["SVC_CONTROLLER_DATA"] = str(restored.data_dir)
            done = await house.ok("controller", "restore", str(archive))
            async with open_controller(restored, {}):
                await world.until(lambda: settled(world))
                orphans = await world.json("node", "orphans")
                assert world.machines() == truth, "nothing was made or removed by itself"
                assert world.carried() == carried
        nursery.cancel_scope.cancel()

    assert "Sessions ended" in done.out
    assert len(before) == 15
    kinds = {(each["name"], each["kind"]) for each in orphans}
    assert kinds == {(f"new-{number}", "unknown") for number in range(5)} | {
        (f"old-{number:02}", "missing") for number in range(3)
    }
