"""That a change of a group reaches the host of every machine in it, with hosts that are away, and hosts that fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_actors.controller.nodes.records import NodeState
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, NetworkSpec
from svc_nodeagent.simulated_machines import SimulatedMachine
from tests.support.gateway import NodeOnDisk
from tests.support.node_api import NodeApiHarness
from tests.support.security_groups import SecurityGroupHarness, open_place


@dataclass
class Estate:
    """A place with a host."""

    place: SecurityGroupHarness
    site: NodeApiHarness
    node: NodeOnDisk

    async def machine(self, name: str) -> UUID:
        """To be made before the agent connects: the host's inventory has it then."""
        vm_id = await self.place.machine(name, node=self.node.node_id)
        self.node.host.machines[vm_id] = SimulatedMachine(
            vm_id=vm_id, name=name, vcpus=1, memory_mib=256, state=DomainState.STOPPED
        )
        return vm_id

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        async with self.node.running():
            await self.site.until_state(self.node.node_id, NodeState.ONLINE)
            yield

    def carried(self, vm_id: UUID) -> NetworkSpec | None:
        network = self.node.host.networks.networks.get(vm_id)
        return None if network is None else network.spec

    def ports(self, vm_id: UUID) -> list[int]:
        """The ports that the host lets in for the machine."""
        network = self.carried(vm_id)
        if network is None or network.firewall is None:
            return []
        return sorted(rule.ports[0] for rule in network.firewall.rules if rule.ports is not None)

    async def behind(self) -> int:
        return int(
            await self.place.database.fetchval(
                "SELECT count(*) FROM vms WHERE deleted_at IS NULL AND net_applied < net_wanted"
            )
        )

    async def alerts(self, vm_id: UUID) -> list[str]:
        """Messages of the alerts about the machine's network that are open."""
        rows = await self.place.database.fetch(
            "SELECT message FROM alerts WHERE key = $1 AND closed_at IS NULL", f"network:{vm_id}"
        )
        return [row["message"] for row in rows]


@pytest.fixture
async def estate(database: Database, tmp_path: Path) -> AsyncIterator[Estate]:
    async with open_place(database, tmp_path, ["node watch", "network watch"]) as place:
        site = NodeApiHarness(place.world.services, tmp_path)
        yield Estate(place, site, await site.join(await site.bootstrap()))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(30):
        while not await condition():
            await trio.sleep(0.01)


async def test_a_changed_rule_is_applied_on_the_host_for_every_machine_in_the_group(estate: Estate) -> None:
    place = estate.place
    group = await place.group(place.ada)
    machines = [await estate.machine(f"m{number}") for number in range(20)]
    outside = await estate.machine("outside")
    async with estate.agent():
        for vm_id in machines:
            await place.put(place.ada, vm_id, [group])
        rule = await place.rule(place.ada, group, port_from=443)

        async def everywhere(*ports: int) -> bool:
            return all(estate.ports(vm_id) == list(ports) for vm_id in machines) and not await estate.behind()

        await until(lambda: everywhere(443))
        assert estate.ports(outside) == []
        await place.ada.call("DELETE", f"/security-groups/{group['id']}/rules/{rule['id']}")
        await until(lambda: everywhere())


async def test_a_host_that_was_away_gets_the_rules_of_today_when_it_is_back(estate: Estate) -> None:
    place = estate.place
    group = await place.group(place.ada)
    vm_id = await estate.machine("m")
    await place.put(place.ada, vm_id, [group])
    for port in (80, 443):
        await place.rule(place.ada, group, port_from=port)
    assert await estate.behind() == 1
    async with estate.agent():

        async def applied() -> bool:
            return estate.ports(vm_id) == [80, 443] and not await estate.behind()

        await until(applied)


async def test_a_host_that_fails_to_apply_is_an_alert_and_is_asked_again_until_it_does(estate: Estate) -> None:
    place, host = estate.place, estate.node.host
    group = await place.group(place.ada)
    vm_id = await estate.machine("m")
    async with estate.agent():
        healthy, host.behaviour = host.behaviour, replace(host.behaviour, failure_rate=1.0)
        await place.put(place.ada, vm_id, [group])
        await place.rule(place.ada, group, port_from=443)

        async def told_of() -> bool:
            return bool(await estate.alerts(vm_id))

        await until(told_of)
        networking = (await place.root.get(f"/vms/{vm_id}/networking")).json()
        assert (networking["status"], "simulated failure" in networking["error"]) == ("failed", True)
        assert estate.ports(vm_id) == []
        host.behaviour = healthy

        async def mended() -> bool:
            return estate.ports(vm_id) == [443] and not await estate.behind() and not await estate.alerts(vm_id)

        await until(mended)
        networking = (await place.ada.get(f"/vms/{vm_id}/networking")).json()
        assert (networking["status"], networking["error"]) == ("applied", None)
