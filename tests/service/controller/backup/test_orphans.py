"""What an operator decides after a controller went back in time: each kind of orphan, adopted and discarded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc.cli.failures import Exit
from svc.controller.config import ControllerConfig
from svc.service.controller.compose import open_controller
from svc_nodeagent.protocol import GuestAddress, VmCreate
from svc_nodeagent.simulated import SimulatedHost
from tests.support.configuration import local_config
from tests.support.gateway import create
from tests.support.lost_controller import World, opened_world


async def unheard(_: int, __: str) -> None:
    await trio.lowlevel.checkpoint()


def address_like(address: GuestAddress, ip: str, *, primary: bool) -> GuestAddress:
    change = {"interface": IPv4Interface(f"{ip}/32"), "network": IPv4Network(f"{ip}/32"), "primary": primary}
    return address.model_copy(update=change)


WISH = (
    "--image",
    "tiny",
    "--project",
    "default",
    "--vcpus",
    "1",
    "--memory-mib",
    "128",
    "--disk-gib",
    "1",
    "--password",
)


@dataclass(frozen=True)
class Host:
    """A node's host while no controller looks."""

    host: SimulatedHost

    def address(self, vm_id: UUID) -> GuestAddress:
        return self.host.networks.networks[vm_id].spec.nics[0].addresses[0]

    def carry_besides(self, vm_id: UUID, ip: str) -> None:
        """As after an order of which no record is left."""
        spec = self.host.networks.networks[vm_id].spec
        [nic] = spec.nics
        more = (*nic.addresses, address_like(nic.addresses[0], ip, primary=False))
        nics = (nic.model_copy(update={"addresses": more}),)
        self.host.networks.apply(vm_id, spec.model_copy(update={"nics": nics, "generation": spec.generation + 1}))

    async def make(self, like: GuestAddress, ip: str) -> UUID:
        order = create()
        [nic] = order.machine.network.nics
        mac = f"52:54:00:aa:00:{IPv4Address(ip).packed[3]:02x}"
        nic = nic.model_copy(update={"mac": mac, "addresses": (address_like(like, ip, primary=True),)})
        network = order.machine.network.model_copy(update={"nics": (nic,)})
        machine = order.machine.model_copy(update={"network": network})
        await self.host.perform(VmCreate(machine=machine, image=order.image, start=True), unheard)
        return machine.vm_id


async def orphans(world: World, number: int) -> bool:
    return len(await world.json("node", "orphans")) == number


async def has_status(world: World, wanted: dict[str, str]) -> bool:
    return wanted.items() <= {vm["name"]: vm["status"] for vm in (await world.records()).values()}.items()


async def agree(world: World, config: ControllerConfig) -> bool:
    """Hosts carry just what the records have, but for the machine that is not there."""
    carried = set(world.carried())
    return carried == {each for each in await world.allocated(config) if UUID(each[1]) in world.known()}


async def test_each_kind_is_adopted_or_discarded_and_a_lost_node_is_written_off(folder: Path) -> None:
    config = local_config(folder / "controller")
    names = ["undefined", "lost", "differs", "same"]
    async with trio.open_nursery() as nursery:
        with structlog.testing.capture_logs():
            async with opened_world(config, folder, nursery) as world:
                house = world.house
                await house.ok("node", "update", "sim-0003", "--maintenance")
                await world.create(names)
                ids = {vm["name"]: UUID(vm["id"]) for vm in (await world.records()).values()}
                recorded = world.carried()

            on = {vm_id: Host(host) for host in world.hosts() for vm_id in host.machines}
            like = on[ids["same"]].address(ids["same"])
            # Of the pool's, and nobody's by the records.
            attached, kept_ip, destroyed_ip = (str(like.interface.ip + offset) for offset in (100, 101, 102))
            on[ids["undefined"]].host.undefine(ids["undefined"])
            on[ids["lost"]].host.lose_files(ids["lost"])
            on[ids["differs"]].carry_besides(ids["differs"], attached)
            kept, destroyed = [await on[ids["same"]].make(like, ip) for ip in (kept_ip, destroyed_ip)]
            world.fleet.agents[2].stop()  # for good
            await house.ok("controller", "rewound", "--as-of", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}")

            async with open_controller(config, {}):
                await world.until(lambda: orphans(world, 5))
                kinds = {UUID(each["id"]): each["kind"] for each in await world.json("node", "orphans")}
                early = await house.svc("vm", "create", "early", *WISH)
                not_awaited = await house.svc("node", "write-off", "sim-0001", "--yes")
                await house.ok("node", "write-off", "sim-0003", "--yes")
                await world.create(["later"])

                await house.ok("node", "adopt", "undefined")
                await house.ok("node", "adopt", "lost")
                await house.ok("node", "discard", "differs", "--yes")
                await house.ok("node", "discard", str(kept), "--yes")
                await house.ok("node", "discard", str(destroyed), "--destroy-disks", "--yes")

                await world.until(lambda: orphans(world, 0))
                await world.until(lambda: has_status(world, {"undefined": "running", "lost": "failed"}))
                await world.until(lambda: agree(world, config))
                records = {vm["name"]: vm for vm in (await world.records()).values()}
                open_alerts = {each["key"] for each in (await world.json("alert", "list"))["items"]}
                carried, disks = world.carried(), [disk.vm_id for host in world.hosts() for disk in host.kept_disks]
                twice = await house.svc("node", "discard", str(kept), "--yes")
        nursery.cancel_scope.cancel()

    assert kinds == {
        ids["undefined"]: "missing",
        ids["lost"]: "missing",
        ids["differs"]: "differing",
        kept: "unknown",
        destroyed: "unknown",
    }
    assert early.code == Exit.UNAVAILABLE
    assert "node sim-0003 has not reported yet" in early.err
    assert not_awaited.code == Exit.CONFLICT
    assert "Node sim-0001 is not awaited" in not_awaited.err
    assert records.keys() == {*names, "later"}
    assert records["lost"]["status_reason"]
    assert set(recorded) - {each for each in recorded if each[1] == str(ids["lost"])} <= set(carried)
    assert not {attached, kept_ip, destroyed_ip} & {ip.split("/")[0] for ip, _ in carried}
    assert disks == [kept]
    assert "controller-restored" not in open_alerts
    assert not any(key.startswith(("orphans:", "machine-unknown:")) for key in open_alerts)
    assert twice.code == Exit.NOT_FOUND
