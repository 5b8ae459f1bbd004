"""A controller that is lost and begins again as of an earlier time, in one process with a fleet that goes on."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import trio

from svc.cli.client import Client
from svc.controller.config import ControllerConfig
from svc_actors.store import Database, reachable_urls
from svc_nodeagent.simulated import SimulatedHost
from svc_nodeagent.simulated_fleet import Fleet
from tests.cli.conftest import House, opened_house

PASSPHRASE = "four words of an operator"
NODES = 3


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

    def known(self) -> set[UUID]:
        """Machines that any host has a network for."""
        return {vm_id for host in self.hosts() for vm_id in host.networks.networks}

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
            verify=context, headers=headers, timeout=60, base_url=f"{house.url}/api/v1"
        ) as client:
            await fleet.enrol(client, lambda name: None)
        await nursery.start(fleet.run)
        world = World(house, fleet)
        await world.until(lambda: online(world))
        await house.image()
        yield world


async def online(world: World) -> bool:
    return len((await world.json("node", "list", "--state", "online"))["items"]) == NODES
