"""A creation that meets a node on its way waits for it; a node takes nothing before it has said what it can carry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc.controller.machines import arrivals, creation
from svc.controller.machines.models import VMCreateResult
from svc_actors.controller.nodes.records import NodeState
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.host import Report
from svc_nodeagent.protocol import NodeInventory, NodeOperation, OperationResult
from svc_nodeagent.simulated import SimulatedHost
from tests.support.gateway import NodeOnDisk, until
from tests.support.node_api import NodeApiHarness, open_site


@dataclass
class HostBeingProbed(SimulatedHost):
    """It has no inventory to give before it is probed."""

    probed: trio.Event = field(default_factory=trio.Event)

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        if isinstance(operation, NodeInventory):
            await self.probed.wait()
        return await super().perform(operation, report)


@pytest.fixture
async def site(database: Database, tmp_path: Path) -> AsyncIterator[NodeApiHarness]:
    """With an image that machines can be made from."""
    async with open_site(database, tmp_path, ["node watch", "events"]) as opened:
        await database.execute(
            """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest,
                                   custom)
               VALUES ('demo', 'Demo', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', $1, true)""",
            "0" * 64,
        )
        yield opened


@pytest.fixture
async def arriving(site: NodeApiHarness) -> tuple[NodeOnDisk, HostBeingProbed]:
    """A node that has joined, and its host."""
    node = await site.join(await site.bootstrap())
    host = HostBeingProbed("probed", uuid4())
    node.host = host
    return node, host


async def create(site: NodeApiHarness) -> VMCreateResult:
    request = creation.VMCreateRequest.model_validate(
        {"name": "web", "image": "demo", "plan": "small", "password": True}
    )
    return await site.call(creation.create, request)


async def test_a_creation_waits_for_a_node_that_has_only_just_connected(
    site: NodeApiHarness, arriving: tuple[NodeOnDisk, HostBeingProbed]
) -> None:
    (node, host), made = arriving, list[VMCreateResult]()

    async def make() -> None:
        made.append(await create(site))

    async with node.running(), trio.open_nursery() as nursery:
        await until(lambda: site.services.gateway.is_online(node.node_id))
        nursery.start_soon(make)
        await until(lambda: site.services.events.statistics().subscribers > 0)
        while_probed = (await site.detail(node.node_id)).state, list(made)
        host.probed.set()

    assert while_probed == (NodeState.PENDING, [])
    assert [result.vm.node_id for result in made] == [node.node_id]
    assert (await site.detail(node.node_id)).state is not NodeState.PENDING


async def test_a_creation_waits_for_a_node_that_has_joined_and_not_connected_yet(
    site: NodeApiHarness, arriving: tuple[NodeOnDisk, HostBeingProbed]
) -> None:
    (node, host), made = arriving, list[VMCreateResult]()

    async def make() -> None:
        made.append(await create(site))

    host.probed.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        await until(lambda: site.services.events.statistics().subscribers > 0)
        async with node.running():
            await until(lambda: len(made) > 0)

    assert made[0].vm.node_id == node.node_id


async def test_a_creation_does_not_wait_for_ever(
    site: NodeApiHarness, arriving: tuple[NodeOnDisk, HostBeingProbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LONGEST_WAIT", 0.2)
    node, _ = arriving

    async with node.running():
        with pytest.raises(ServiceError) as refused:
            await create(site)

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert await site.count("SELECT count(*) FROM vms") == 0


async def test_a_node_that_is_away_is_not_waited_for(
    site: NodeApiHarness, arriving: tuple[NodeOnDisk, HostBeingProbed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "LONGEST_WAIT", 3600.0)
    node, host = arriving
    host.probed.set()
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
    await site.until_state(node.node_id, NodeState.OFFLINE)

    with trio.fail_after(60), pytest.raises(ServiceError) as refused:
        await create(site)

    assert refused.value.code is ErrorCode.UNAVAILABLE
