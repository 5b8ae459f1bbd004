"""Whatever happens in whatever order: in the end hosts carry what is recorded, and no address was ever in two hands.

Controllers die, nodes come and go, hosts refuse and answer late, while addresses are attached, detached and machines
deleted. Each round is drawn from its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from ipaddress import ip_address
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.runtime import DomainError
from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_nodeagent.protocol import FailureCode, NetworkSpec, NodeOperation
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import Fleet
from tests.support.networking import Hosts, NetworkHarness, open_stage

LIVES = 4
ACTIONS = 12


class TwoHands(Exception):  # noqa: N818 - named for what it says
    pass


def watch_hands(hosts: Hosts, told: list[str]) -> None:
    """Note every moment in which a host came to carry one address for two machines."""
    for host in hosts.hosts.values():
        apply: Callable[[UUID, NetworkSpec], int] = host.networks.apply

        def checked(
            vm_id: UUID, spec: NetworkSpec, apply: Callable[[UUID, NetworkSpec], int] = apply, host: object = host
        ) -> int:
            generation = apply(vm_id, spec)
            mine = hosts.carried(vm_id)
            for other in {each for one in hosts.hosts.values() for each in one.networks.networks} - {vm_id}:
                if both := mine & hosts.carried(other):
                    told.append(f"{sorted(both)} of {vm_id} and {other}")
            return generation

        host.networks.apply = checked  # type: ignore[method-assign]


async def act(stage: NetworkHarness, chance: random.Random, vm_ids: list[UUID]) -> None:
    """One thing that a person does, or that happens to a node."""
    vm_id = chance.choice(vm_ids)
    match chance.randrange(6):
        case 0 | 1:
            await stage.attach(vm_id, family=chance.choice([4, 6]))
        case 2 | 3:
            held = [ip for ip, state in (await stage.held(vm_id)).items() if state == "allocated"]
            await stage.service.machine(vm_id).ask(
                Machine.detach_address, ADMINISTRATOR, ip_address(chance.choice(held).split("/")[0])
            )
        case 4:
            stage.hosts.offline ^= {stage.world.node_id}
            stage.watch.connected(stage.world.node_id)
        case 5:
            await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.RESET)


async def life(database: Database, hosts: Hosts, world: Fleet, vm_ids: list[UUID], chance: random.Random) -> None:
    """A controller's, to its sudden death."""
    with trio.move_on_after(chance.random() * 0.3):
        async with open_stage(database, world=world, hosts=hosts) as stage:
            for _ in range(ACTIONS):
                try:
                    await act(stage, chance, vm_ids)
                except (ServiceError, DomainError, IndexError):
                    continue  # Refused, or nothing to take: as a person would hear.
                await trio.sleep(chance.random() * 0.01)


@pytest.mark.parametrize("seed", range(8))
async def test_in_the_end_hosts_carry_what_is_recorded_and_no_address_was_in_two_hands(
    database: Database, seed: int
) -> None:
    chance = random.Random(seed)
    hosts, told = Hosts(), list[str]()
    async with open_stage(database, hosts=hosts) as stage:
        world = stage.world
        await database.execute("UPDATE pools SET last_slot = 9, range_end = '10.77.0.9' WHERE id = $1", world.pool_id)
        await stage.pool("2001:db8:77::/62", topology="routed")
        vm_ids = [await stage.machine(f"m{number}") for number in range(3)]
        watch_hands(hosts, told)

    async def unsteady(_: NodeOperation) -> None:
        await trio.sleep(chance.random() * 0.02)
        if chance.random() < 0.3:
            raise OperationFailed(FailureCode.HOST, "not now")

    hosts.plays = {"vm.net.apply": unsteady, "vm.net.release": unsteady}
    for _ in range(LIVES):
        await life(database, hosts, world, vm_ids, chance)
    hosts.plays, hosts.offline = {}, set()
    async with open_stage(database, world=world, hosts=hosts) as stage:
        for vm_id in vm_ids:
            await stage.until_applied(vm_id)

        async def nothing_waits() -> bool:
            return not await database.fetchval("SELECT count(*) FROM allocations WHERE state = 'releasing'")

        await stage.until(nothing_waits)
        for vm_id in vm_ids:
            assert hosts.carried(vm_id) == set(await stage.held(vm_id))
        await stage.probe.probe(world.node_id)
        assert await stage.alerts("network") == []
    assert told == []
