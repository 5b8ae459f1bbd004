"""The controller put together, with agents over the real gateway: what a connection sets off."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import trio

from svc.controller.nodes import network as nodes_network
from svc.controller.nodes import nodes
from svc.controller.services import ControllerLoop
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.nodes.records import NodeState
from svc_actors.store import Database
from tests.support.gateway import NodeOnDisk
from tests.support.network_records import Records
from tests.support.node_api import NodeApiHarness, open_site

PATIENCE = 60.0
LOOPS: Final[tuple[ControllerLoop, ...]] = ("node watch", "network watch")


async def joined(site: NodeApiHarness) -> tuple[NodeOnDisk, UUID]:
    """A node with one machine that was built long ago."""
    node = await site.join(await site.bootstrap())
    records = await Records.of(site.services.database)
    [vm_id] = await records.machines(node.node_id, node.host, 1)
    return node, vm_id


async def until_applied(site: NodeApiHarness, vm_id: UUID) -> None:
    with trio.fail_after(PATIENCE):
        while not await site.services.database.fetchval(
            "SELECT net_applied >= net_wanted FROM vms WHERE id = $1", vm_id
        ):
            await trio.sleep(0.02)


async def network(site: NodeApiHarness, node_id: UUID) -> nodes_network.NodeNetwork:
    """What the first probe found."""
    request = nodes_network.NodeNetworkRequest(id=node_id)
    with trio.fail_after(PATIENCE):
        while (shown := await site.call(nodes_network.show_network, request)).probed_at is None:
            await trio.sleep(0.02)
    return shown


async def test_a_node_that_connects_is_brought_up_to_date_and_asked_what_it_has(
    database: Database, tmp_path: Path
) -> None:
    async with open_site(database, tmp_path, LOOPS) as site:
        node, vm_id = await joined(site)
        async with database.transaction() as tx:
            await network_changed(tx, [vm_id])
        async with node.running():
            await until_applied(site, vm_id)
            shown = await network(site, node.node_id)
        assert shown.probed_at is not None
        assert node.host.networks.networks[vm_id].spec.generation >= 2


async def test_a_change_reaches_a_connected_node_without_being_asked_for(database: Database, tmp_path: Path) -> None:
    async with open_site(database, tmp_path, LOOPS) as site:
        node, vm_id = await joined(site)
        async with node.running():
            await site.until_state(node.node_id, NodeState.ONLINE)
            async with database.transaction() as tx:
                await tx.execute("UPDATE vms SET rate_mbps = 30 WHERE id = $1", vm_id)
                await network_changed(tx, [vm_id])
            await until_applied(site, vm_id)
        assert node.host.networks.networks[vm_id].spec.nics[0].rate_mbps == 30


async def test_a_stray_network_is_found_when_its_node_connects(database: Database, tmp_path: Path) -> None:
    async with open_site(database, tmp_path, LOOPS) as site:
        node, _ = await joined(site)
        stray = uuid4()
        # Which of several the default pool is depends on the addresses of the host that this runs on.
        carried = await database.fetchval("SELECT host(cidr)::inet + 50 FROM pools WHERE family = 4")
        node.host.networks.drift(stray, carried=[str(carried)])
        async with node.running():
            shown = await network(site, node.node_id)
            assert stray in {each.vm_id for each in shown.differences}
            blocked = "SELECT count(*) FROM allocations WHERE ip = $1 AND state = 'blocked'"
            with trio.fail_after(PATIENCE):
                while not await site.count(blocked, carried):
                    await trio.sleep(0.02)
        assert node.host.networks.networks[stray].carried == (str(carried),), "no record says that it may go"


async def test_a_hosts_own_address_is_given_to_no_machine_while_its_node_is_there(
    database: Database, tmp_path: Path
) -> None:
    async with open_site(database, tmp_path, LOOPS) as site:
        node = await site.join(await site.bootstrap())
        pool = await database.fetchrow("SELECT id, cidr FROM pools WHERE family = 4 LIMIT 1")
        assert pool is not None
        own = pool["cidr"].network_address + 9
        node.host.host_addresses = (f"{own}/24",)
        kept = "SELECT count(*) FROM allocations WHERE pool_id = $1 AND ip = $2 AND state = 'reserved'"
        async with node.running():
            with trio.fail_after(PATIENCE):
                while not await site.count(kept, pool["id"], own):
                    await trio.sleep(0.02)
        await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))
        assert await site.count(kept, pool["id"], own) == 0
