"""Nodes as an operator has them: joining, being seen, being looked at, being deleted."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc.controller.nodes import joining as nodes_joining
from svc.controller.nodes import lost, nodes
from svc.controller.nodes.models import HealthStatus
from svc.controller.tasks import TaskModel
from svc.registry.operation import Empty
from svc_actors.alerts import raise_alert
from svc_actors.controller.gateway.gateway import NodeLost
from svc_actors.controller.nodes.node import offline_alert
from svc_actors.controller.nodes.records import NodeMode, NodeState
from svc_actors.controller.reconcile.node_watch import Intervals, NodeWatch, machine_deliverer
from svc_actors.controller.reconcile.orphans import orphans_alert
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError, unavailable
from svc_nodeagent.enrol import EnrolmentRefused, new_key, signing_request
from svc_nodeagent.protocol import PROTOCOL_VERSION, DomainState, Versions
from svc_nodeagent.version import agent_version
from tests.support.gateway import BRISK, NodeOnDisk, until
from tests.support.node_api import NodeApiHarness, open_site


async def test_a_bootstrap_token_used_twenty_times_at_once_makes_one_node(site: NodeApiHarness) -> None:
    token = await site.bootstrap()
    joined: list[NodeOnDisk] = []
    refused: list[str] = []

    async def use() -> None:
        try:
            joined.append(await site.join(token))
        except EnrolmentRefused as error:
            refused.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(use)
    assert len(joined) == 1
    assert len(refused) == 19
    assert all("used already" in reason for reason in refused)
    assert await site.count("SELECT count(*) FROM nodes") == 1
    assert await site.count("SELECT count(*) FROM node_certificates WHERE revoked_at IS NULL") == 1


async def test_a_host_whose_answer_was_lost_asks_again_and_is_the_same_node(site: NodeApiHarness) -> None:
    token, host, key = await site.bootstrap(), uuid4(), new_key()
    request = nodes_joining.NodeEnrolRequest(token=token, csr=signing_request(key), hostname="host", host_uuid=host)
    lost = await site.call(nodes_joining.enrol_node, request)
    again = await site.call(nodes_joining.enrol_node, request)
    assert again.node_id == lost.node_id
    with pytest.raises(ServiceError, match="used already"):
        await site.call(nodes_joining.enrol_node, request.model_copy(update={"csr": signing_request(new_key())}))


async def test_a_host_is_one_node_under_whatever_token(site: NodeApiHarness) -> None:
    host = uuid4()
    await site.join(await site.bootstrap("node-1"), host=host)
    with pytest.raises(EnrolmentRefused, match="joined already"):
        await site.join(await site.bootstrap("node-2"), host=host)


async def test_an_expired_withdrawn_or_invented_token_is_refused_and_the_name_stays_free(site: NodeApiHarness) -> None:
    expired = await site.bootstrap("node-1")
    await site.services.database.execute("UPDATE node_bootstraps SET expires_at = now() - interval '1 second'")
    withdrawn = await site.bootstrap("node-1")
    pending = await site.call(nodes_joining.list_bootstraps, Empty())
    assert [each.name for each in pending] == ["node-1"]
    await site.call(nodes_joining.withdraw_bootstrap, nodes_joining.BootstrapRequest(id=pending[0].id))
    for token in (expired, withdrawn, "svcnode_invented"):
        with pytest.raises(EnrolmentRefused, match=r"expired|unknown"):
            await site.join(token)
    await site.join(await site.bootstrap("node-1"))


async def test_the_token_is_in_no_row_of_the_database(site: NodeApiHarness) -> None:
    token = await site.bootstrap()
    await site.join(token)
    for table in ("node_bootstraps", "audit", "event", "event_inbox"):
        assert token not in str(await site.services.database.fetch(f"SELECT * FROM {table}"))


async def test_a_node_is_pending_then_online_with_its_facts_then_offline(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    assert (await site.detail(node.node_id)).state is NodeState.PENDING
    node.host.populate(3)
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
        with trio.fail_after(60):
            while not (detail := await site.detail(node.node_id)).health.checks or detail.facts is None:
                await trio.sleep(0.02)
        domains = await site.call(nodes.node_domains, nodes.NodeRequest(id=node.node_id))
    assert detail.facts.accelerator == "simulated"
    assert detail.health.status is HealthStatus.PASSED
    assert {check.name for check in detail.health.checks} >= {"libvirt", "time", "certificate"}
    assert detail.capacity is not None
    assert detail.capacity.memory_free_mib == detail.capacity.memory_mib - 3 * 512
    assert len(domains) == 3
    assert not any(domain.managed for domain in domains)
    await site.until_state(node.node_id, NodeState.OFFLINE)


async def test_inventory_and_preflight_are_tasks_that_end(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
        node.host.populate(2)
        for order in (nodes.take_inventory, nodes.run_preflight):
            task = await site.call(order, nodes.NodeRequest(id=node.node_id))
            await _until_ended(site, task)
        domains = await site.call(nodes.node_domains, nodes.NodeRequest(id=node.node_id))
        page = await site.call(nodes.node_tasks, nodes.NodeTaskList(id=node.node_id))
    assert len(domains) == 2
    assert {task.op: task.status for task in page.items} == {
        "node.inventory": "succeeded",
        "node.preflight": "succeeded",
    }


async def test_the_domains_of_a_node_are_what_its_host_says_now_and_what_it_said_last_while_it_is_away(
    site: NodeApiHarness,
) -> None:
    node = await site.join(await site.bootstrap())
    request = nodes.NodeRequest(id=node.node_id)
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
        with trio.fail_after(60):
            while (await site.detail(node.node_id)).health.inventory_at is None:
                await trio.sleep(0.02)
        inventoried_at = (await site.detail(node.node_id)).health.inventory_at
        node.host.populate(2)
        [first, second] = await site.call(nodes.node_domains, request)
        assert inventoried_at is not None
        assert first.observed_at > inventoried_at
        assert second.observed_at == first.observed_at
    await site.until_state(node.node_id, NodeState.OFFLINE)
    assert await site.call(nodes.node_domains, request) == []


async def test_orders_to_an_offline_node_are_refused_as_unavailable(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    with pytest.raises(ServiceError) as refusal:
        await site.call(nodes.take_inventory, nodes.NodeRequest(id=node.node_id))
    assert refusal.value.code is ErrorCode.UNAVAILABLE
    assert await site.count("SELECT count(*) FROM tasks") == 0


async def test_a_deleted_node_is_gone_from_every_list_and_may_not_come_back(site: NodeApiHarness) -> None:
    host = uuid4()
    node = await site.join(await site.bootstrap(), host=host)
    async with node.running() as agent:
        await site.until_state(node.node_id, NodeState.ONLINE)
        await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))
        with trio.fail_after(10):
            await until(lambda: not agent.connected)
        await until(lambda: site.services.gateway.refused >= 1)
        assert not agent.connected
    assert (await site.call(nodes.list_nodes, nodes.NodeList())).total == 0
    with pytest.raises(ServiceError) as absent:
        await site.detail(node.node_id)
    assert absent.value.code is ErrorCode.NOT_FOUND
    # The host may join anew, under the same name, as another node.
    again = await site.join(await site.bootstrap(), host=host)
    assert again.node_id != node.node_id


async def test_a_deleted_node_takes_every_alert_about_it_along(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    other = await site.join(await site.bootstrap("other"))
    for about in (node, other):
        for key in (orphans_alert(about.node_id), offline_alert(about.node_id)):
            await site.services.database.transact(
                partial(raise_alert, key=key, message=key, resource_kind="node", resource_id=about.node_id)
            )

    await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))

    rows = await site.services.database.fetch("SELECT key FROM alerts WHERE closed_at IS NULL")
    assert {row["key"] for row in rows} == {orphans_alert(other.node_id), offline_alert(other.node_id)}


async def test_a_node_with_machines_is_not_deleted(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    await _placed(site, node.node_id)
    with pytest.raises(ServiceError) as refusal:
        await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))
    assert refusal.value.code is ErrorCode.CONFLICT
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)


async def test_a_node_with_volumes_is_not_deleted(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    kept = "INSERT INTO volumes (name, node_id, size_gib, state, made_at) VALUES ('kept', $1, 1, 'available', now())"
    await site.services.database.execute(kept, node.node_id)
    with pytest.raises(ServiceError) as refusal:
        await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))
    assert (refusal.value.code, refusal.value.details) == (ErrorCode.CONFLICT, {"volumes": 1})
    await site.services.database.execute("UPDATE volumes SET state = 'deleted', deleted_at = now()")
    await site.call(nodes.delete_node, nodes.NodeRequest(id=node.node_id))


async def test_a_nodes_settings_change_and_managed_does_not_go_back_to_observe(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap(mode=NodeMode.OBSERVE))
    await site.join(await site.bootstrap("taken"))
    updated = await site.call(
        nodes.update_node,
        nodes.NodeUpdate(
            id=node.node_id,
            name="renamed",
            mode=NodeMode.MANAGED,
            maintenance=True,
            overcommit=nodes.OvercommitChange(cpu=8),
        ),
    )
    assert (updated.name, updated.mode, updated.maintenance) == ("renamed", NodeMode.MANAGED, True)
    assert (updated.overcommit.cpu, updated.overcommit.memory) == (8, 1)
    for change in ({"mode": NodeMode.OBSERVE}, {"name": "taken"}):
        with pytest.raises(ServiceError) as refusal:
            await site.call(nodes.update_node, nodes.NodeUpdate(id=node.node_id, **change))
        assert refusal.value.code is ErrorCode.CONFLICT
    async with node.running():
        await site.until_state(node.node_id, NodeState.MAINTENANCE)
        listed = await site.call(nodes.list_nodes, nodes.NodeList(state=NodeState.MAINTENANCE))
    assert [each.name for each in listed.items] == ["renamed"]


async def test_a_node_that_speaks_for_another_nodes_machine_is_refused_and_audited(site: NodeApiHarness) -> None:
    node, other = await site.join(await site.bootstrap("node-1")), await site.join(await site.bootstrap("node-2"))
    vm_id = await _placed(site, other.node_id)
    before = await site.services.database.fetchrow("SELECT status, observed_state FROM vms WHERE id = $1", vm_id)
    node.host.populate(1)
    (own,) = node.host.machines.values()
    node.host.machines = {vm_id: own.model_copy(update={"vm_id": vm_id})}
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)
        node.host.set_state(vm_id, DomainState.CRASHED, "says who?")
        with trio.fail_after(60):
            while not await site.count("SELECT count(*) FROM audit WHERE actor = 'node:node-1' AND outcome = 'denied'"):
                await trio.sleep(0.02)
    after = await site.services.database.fetchrow("SELECT status, observed_state FROM vms WHERE id = $1", vm_id)
    assert after == before


async def test_nodes_that_were_online_when_the_controller_stopped_are_offline_after_their_grace(
    database: Database, tmp_path: Path
) -> None:
    async with open_site(database, tmp_path) as site:
        node = await site.join(await site.bootstrap())
        await database.execute(
            "UPDATE nodes SET state = 'online', seen_at = now() - interval '1 hour' WHERE id = $1", node.node_id
        )
        intervals = Intervals(grace=0.0, look=0.05, record=60, inventory=600, alert_after=0.0)
        watch = NodeWatch(site.services.actors, database, machine_deliverer(site.services.actors), intervals=intervals)
        watch.watch(site.services.gateway)
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.run)
            await site.until_state(node.node_id, NodeState.OFFLINE)
            with trio.fail_after(60):
                while not await site.count("SELECT count(*) FROM alerts WHERE closed_at IS NULL"):
                    await trio.sleep(0.02)
            async with node.running():
                await site.until_state(node.node_id, NodeState.ONLINE)
                assert await site.count("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0
            nursery.cancel_scope.cancel()


async def test_an_hours_sample_is_the_mean_of_its_minutes(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    watch = NodeWatch(site.services.actors, site.services.database, machine_deliverer(site.services.actors))
    watch.watch(site.services.gateway)
    for load in (2, 4):
        node.host.machines.clear()
        node.host.populate(load * 20)
        # An agent says what it has free as soon as it is connected.
        async with node.running():
            with trio.fail_after(60):
                while (beat := site.services.gateway.heartbeat(node.node_id)) is None or beat.capacity.load_1m != load:
                    await trio.sleep(0.02)
            await site.until_state(node.node_id, NodeState.ONLINE)
            await watch.record()
    page = await site.call(nodes.node_samples, nodes.NodeSamplesRequest(id=node.node_id, hours=2))
    [sample] = page.items
    assert (sample.samples, sample.load_1m) == (2, 3.0)


async def test_what_a_node_does_is_announced(database: Database, tmp_path: Path) -> None:
    async with open_site(database, tmp_path, ["node watch", "events"]) as site:
        node = await site.join(await site.bootstrap())
        async with node.running():
            await site.until_state(node.node_id, NodeState.ONLINE)
        await site.until_state(node.node_id, NodeState.OFFLINE)
        with trio.fail_after(60):
            while True:
                rows = await database.fetch(
                    "SELECT payload->>'change' AS change FROM event WHERE kind = 'node' ORDER BY position"
                )
                changes = [row["change"] for row in rows if row["change"] not in ("inventory", "preflight")]
                if len(changes) == 3:
                    break
                await trio.sleep(0.02)
    assert changes == ["joined", "online", "offline"]


async def _until_ended(site: NodeApiHarness, task: TaskModel) -> None:
    with trio.fail_after(60):
        while await site.count("SELECT count(*) FROM tasks WHERE id = $1 AND ended_at IS NULL", task.id):
            await trio.sleep(0.02)


async def _placed(site: NodeApiHarness, node_id: UUID) -> UUID:
    """A machine that runs on a node, as far as the records say."""
    database = site.services.database
    project = await database.fetchval("INSERT INTO projects (name) VALUES ('p') RETURNING id")
    image = await database.fetchval(
        "INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, url, custom)"
        " VALUES ('i', 'i', 'linux', 'd', '1', 'root', 'qcow2', 'url', 'https://images.example/i', true) RETURNING id"
    )
    vm_id: UUID = await database.fetchval(
        "INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,"
        " access_mode, built_at) VALUES ('web', 'web', $1, $2, $3, 1, 256, 1, 'running', 'root_key', now())"
        " RETURNING id",
        project,
        node_id,
        image,
    )
    return vm_id


async def test_a_refused_enrolment_leaves_the_identity_of_the_host_as_it_was(site: NodeApiHarness) -> None:
    host = uuid4()
    node = await site.join(await site.bootstrap("node-1"), host=host)
    before = node.folder.identity.read_bytes(), node.folder.enrolment.read_bytes()
    with pytest.raises(EnrolmentRefused):
        await site.join(await site.bootstrap("node-2"), host=host, folder=node.folder)
    assert (node.folder.identity.read_bytes(), node.folder.enrolment.read_bytes()) == before
    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)


async def test_a_node_whose_agent_is_of_another_time_says_so_until_it_is_replaced(site: NodeApiHarness) -> None:
    node = await site.join(await site.bootstrap())
    alert = "SELECT count(*) FROM alerts WHERE key = $1 AND closed_at IS NULL"

    async with node.running(BRISK, Versions(1, 2)):
        with trio.fail_after(60):
            while (reason := (await site.detail(node.node_id)).state_reason) is None:
                await trio.sleep(0.02)

    assert "speaks protocol 1 to 2" in reason
    assert "Install the agent of this release" in reason
    assert await site.count(alert, f"node-agent:{node.node_id}") == 1

    async with node.running():
        await site.until_state(node.node_id, NodeState.ONLINE)

        detail = await site.detail(node.node_id)
        assert detail.state_reason is None
        assert detail.agent is not None
        assert (detail.agent.version, detail.agent.protocol) == (agent_version(), PROTOCOL_VERSION)
        assert await site.count(alert, f"node-agent:{node.node_id}") == 0


async def test_a_loss_that_is_cut_short_leaves_the_node_as_it_was(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut_short(tx: Transaction, node_id: UUID) -> None:
        raise unavailable("The database is away.")

    async with open_site(database, tmp_path) as site:
        node = await site.join(await site.bootstrap())
        await database.execute("UPDATE nodes SET unheard = true WHERE id = $1", node.node_id)
        loss = lost.NodeLoss(id=node.node_id, confirm="node-1", note="scrapped")
        unheard = "SELECT count(*) FROM nodes WHERE id = $1 AND unheard"

        with monkeypatch.context() as patched:
            patched.setattr(lost, "tell_of_orphans", cut_short)
            with pytest.raises(ServiceError):
                await site.call(lost.declare_lost, loss)
        before = (await site.detail(node.node_id)).state, await site.count(unheard, node.node_id)
        await site.call(lost.declare_lost, loss)
        after = (await site.detail(node.node_id)).state, await site.count(unheard, node.node_id)

    assert before == (NodeState.PENDING, 1)
    assert after == (NodeState.LOST, 0)


async def test_a_lost_node_may_not_come_back_and_the_next_controller_knows(database: Database, tmp_path: Path) -> None:
    async with open_site(database, tmp_path) as site:
        node = await site.join(await site.bootstrap())
        await site.call(lost.declare_lost, lost.NodeLoss(id=node.node_id, confirm="node-1", note="scrapped"))
        async with node.running() as agent:
            await until(lambda: site.services.gateway.refused >= 1)
            assert not agent.connected
        with pytest.raises(ServiceError) as misnamed:
            await site.call(lost.declare_lost, lost.NodeLoss(id=node.node_id, confirm="node-2", note="scrapped"))

    async with open_site(database, tmp_path) as site:
        with pytest.raises(NodeLost):
            await site.services.gateway.until_online(node.node_id)
        assert (await site.detail(node.node_id)).state is NodeState.LOST
    assert misnamed.value.code is ErrorCode.INVALID
