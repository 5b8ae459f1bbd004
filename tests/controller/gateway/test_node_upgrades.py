"""Upgrading the agents of nodes as an administrator orders it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc.controller.nodes import upgrading
from svc.controller.nodes.models import AgentUpgrade
from svc_actors.controller.nodes.records import NodeState
from svc_actors.controller.tasks.runner import Task, TaskStatus, get_task, read_log
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.protocol import FailureCode, NodeUpgrade
from svc_nodeagent.upgrade import Upgrader
from tests.support.changes import Changes
from tests.support.gateway import NodeOnDisk
from tests.support.node_api import NodeApiHarness
from tests.support.releases import installed, kept_release, launched, wheel_of


class Scripted(Upgrader):
    """An agent of an old release whose upgrade does as it is told, and counts how many are under way."""

    under_way = 0
    most = 0
    together = 1
    """How many have to be under way before the first of them ends."""
    begun = Changes()

    def __init__(self, node: NodeOnDisk, *, fails: bool = False) -> None:
        super().__init__(node.folder.path, "0.9-000000000000", node.folder.authority)
        self._fails = fails

    async def upgrade(self, operation: NodeUpgrade, open_stream: OpenStream, report: Report) -> None:
        Scripted.under_way += 1
        Scripted.most = max(Scripted.most, Scripted.under_way)
        Scripted.begun.tell()
        await Scripted.begun.until(lambda: Scripted.most >= Scripted.together)
        await trio.sleep(0.2)  # So that one more than may be would be seen.
        Scripted.under_way -= 1
        if self._fails:
            raise HostError(FailureCode.HOST, "Release 1 was tried and given up.")


async def ended(site: NodeApiHarness, task_id: UUID) -> Task:
    with trio.fail_after(40):
        while True:
            task = await get_task(site.services.database, task_id)
            if task is not None and not task.status.open:
                return task
            await trio.sleep(0.02)


async def upgrade_of(site: NodeApiHarness, node: NodeOnDisk) -> AgentUpgrade | None:
    agent = (await site.detail(node.node_id)).agent
    return agent.upgrade if agent is not None else None


async def test_a_node_is_upgraded_to_the_release_that_the_controller_brings(
    site: NodeApiHarness, tmp_path: Path
) -> None:
    node = await site.join(await site.bootstrap())
    old = kept_release(tmp_path / "old", "0.0.1", wheel_of("0.0.1"))
    installed(node.folder.path, old)

    with launched(node.folder.path, "--simulated"):
        await site.until_state(node.node_id, NodeState.ONLINE)
        assert await upgrade_of(site, node) is AgentUpgrade.AVAILABLE

        request = upgrading.NodeUpgradeRequest(id=node.node_id)
        task = await site.call(upgrading.upgrade_node, request)
        assert (await ended(site, task.id)).status is TaskStatus.SUCCEEDED

        await site.until_state(node.node_id, NodeState.ONLINE)
        agent = (await site.detail(node.node_id)).agent
        assert agent is not None
        assert (agent.version, agent.release) == (site.services.agent.version, site.services.agent.name)
        assert agent.upgrade is AgentUpgrade.CURRENT
        with pytest.raises(ServiceError, match="already has this release") as refused:
            await site.call(upgrading.upgrade_node, request)
        assert refused.value.code is ErrorCode.CONFLICT


async def test_the_first_failure_stops_the_nodes_that_wait(site: NodeApiHarness) -> None:
    async with AsyncExitStack() as running:
        for number in range(5):
            node = await site.join(await site.bootstrap(f"node-{number}"))
            await running.enter_async_context(node.running(upgrader=Scripted(node, fails=True)))
            await site.until_state(node.node_id, NodeState.ONLINE)

        ordered = await site.call(upgrading.upgrade_all, upgrading.NodeUpgradeAll(at_once=1))
        tasks = [await ended(site, task.id) for task in ordered.tasks]

        (failed,) = (task for task in tasks if task.status is TaskStatus.FAILED)
        stopped = [task for task in tasks if task.status is TaskStatus.CANCELLED]
        assert len(stopped) == 4
        log = await read_log(site.services.database, stopped[0].id, after=0, limit=10)
        assert f"Not started: the upgrade of node {failed.resource_name} failed." in [line.message for line in log]
        agent = (await site.detail(failed.resource_id)).agent
        assert agent is not None
        assert agent.upgrade is AgentUpgrade.FAILED
        key = f"node-upgrade:{failed.resource_id}"
        assert await site.count("SELECT count(*) FROM alerts WHERE key = $1 AND closed_at IS NULL", key) == 1


async def test_several_nodes_are_upgraded_at_once_and_no_more_than_asked(
    site: NodeApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.under_way = Scripted.most = 0
    monkeypatch.setattr(Scripted, "together", 2)
    async with AsyncExitStack() as running:
        for number in range(4):
            node = await site.join(await site.bootstrap(f"node-{number}"))
            await running.enter_async_context(node.running(upgrader=Scripted(node)))
            await site.until_state(node.node_id, NodeState.ONLINE)

        ordered = await site.call(upgrading.upgrade_all, upgrading.NodeUpgradeAll(at_once=2))
        tasks = [await ended(site, task.id) for task in ordered.tasks]

        assert [task.status for task in tasks] == [TaskStatus.SUCCEEDED] * 4
        assert Scripted.most == 2


async def test_an_agent_that_cannot_replace_itself_is_left_to_the_operator(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())

    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
        with pytest.raises(ServiceError, match="cannot replace itself"):
            await site.call(upgrading.upgrade_node, upgrading.NodeUpgradeRequest(id=node.node_id))
        assert (await site.call(upgrading.upgrade_all, upgrading.NodeUpgradeAll())).tasks == []
