"""Traffic from a host's counters to what its host then carries, through a real gateway and agents."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from svc_actors.controller.nodes.records import NodeState
from svc_actors.controller.traffic.enforcement import enforce
from svc_actors.controller.traffic.periods import period_of, utc_now
from svc_actors.controller.traffic.policy import GIB, Policy, TrafficAction
from svc_actors.controller.traffic.readings import months_of
from svc_actors.controller.traffic.watch import CountingGateway, TrafficWatch
from svc_actors.store import Database
from svc_nodeagent.simulated import SimulatedHost
from tests.support.gateway import NodeOnDisk, open_rig, until
from tests.support.node_api import open_site
from tests.support.traffic import TrafficHarness


def watch_over(database: Database, gateway: CountingGateway) -> TrafficWatch:
    def no_report(node_id: UUID, what: str) -> None:
        raise AssertionError(what)

    return TrafficWatch(database, gateway, unauthorised_report=no_report)


async def test_a_figure_goes_on_where_it_was_when_agent_and_controller_are_restarted(
    stage: TrafficHarness, tmp_path: Path
) -> None:
    async with open_rig(stage.database, tmp_path) as rig:
        node: NodeOnDisk = await rig.new_node()
        vm_id = await stage.machine("web", node_id=node.node_id)

        async def asked() -> int:
            async with node.running():
                await rig.until_online(node.node_id)
                watch = watch_over(stage.database, rig.gateway)
                for _ in range(2):
                    await watch.ask(node.node_id)
            await until(lambda: not rig.gateway.is_online(node.node_id))
            months = await months_of(stage.database, vm_id, period_of(utc_now()))
            return sum(month.sent_bytes for month in months)

        node.host.networks.count(vm_id, received=0, sent=5_000)
        assert await asked() == 5_000
        node.host.networks.count(vm_id, received=10, sent=1_000)
        assert await asked() == 6_000
        await rig.stop_gateway()
        node.host.networks.count(vm_id, received=10, sent=500)
        await rig.start_gateway()
        assert await asked() == 6_500


async def test_a_machine_beyond_its_allowance_is_cut_off_by_its_host_and_let_go_again(
    stage: TrafficHarness, tmp_path: Path
) -> None:
    async with open_site(stage.database, tmp_path, ["node watch", "network watch"]) as site:
        node = await site.join(await site.bootstrap())
        host: SimulatedHost = node.host
        host.populate(1)
        [vm_id] = host.machines
        plan = await stage.plan()
        stage.now = utc_now()
        await stage.allow(plan, Policy(1, action=TrafficAction.SUSPEND))
        await stage.machine("web", plan, node_id=node.node_id, vm_id=vm_id)
        async with node.running():
            await site.until_state(node.node_id, NodeState.ONLINE)
            watch = watch_over(stage.database, site.services.gateway)
            await watch.ask(node.node_id)
            host.networks.count(vm_id, received=0, sent=2 * GIB)
            await watch.ask(node.node_id)
            await enforce(stage.database, stage.now)
            await until(lambda: isolated(host, vm_id))
            await stage.allow(plan, Policy(3, action=TrafficAction.SUSPEND))
            await enforce(stage.database, stage.now)
            await until(lambda: not isolated(host, vm_id))
            assert host.machines[vm_id].state.value == "running"


def isolated(host: SimulatedHost, vm_id: UUID) -> bool:
    network = host.networks.networks.get(vm_id)
    return network is not None and network.spec.isolated
