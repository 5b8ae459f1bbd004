"""The network watch: hosts are brought to what is recorded, until that succeeds; nothing is freed too early."""

from __future__ import annotations

from ipaddress import ip_address
from uuid import UUID

import pytest
import trio
import trio.lowlevel

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.networking.addresses import ReleasingAddresses, force_free, releasing_of
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.networking.security_groups import Action, create_group, set_groups
from svc_actors.controller.reconcile import network_watch
from svc_actors.controller.tasks.runner import TaskStatus
from svc_actors.store import Database, Queryable
from svc_nodeagent.host import Report
from svc_nodeagent.protocol import FailureCode, NetworkResult, NodeOperation, OperationResult, VmNetApply, VmNetRelease
from tests.support.callers import ADMINISTRATOR
from tests.support.network_records import Records
from tests.support.networking import BRISK, Held, Hosts, NetworkHarness, another_node, failing, open_stage, unheard


async def changed(stage: NetworkHarness, *vm_ids: UUID) -> None:
    async with stage.database.transaction() as tx:
        await network_changed(tx, vm_ids)


async def primary(stage: NetworkHarness, vm_id: UUID) -> str:
    [address] = await stage.held(vm_id)
    return address


async def test_a_new_machines_network_is_applied_by_its_creation(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        assert stage.hosts.carried(vm_id) == {await primary(stage, vm_id)}
        assert stage.hosts.asked_for("vm.net.apply") == []


async def test_an_attached_address_is_carried_by_the_host_beside_the_first(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first = await primary(stage, vm_id)
        second = await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        assert stage.hosts.carried(vm_id) == {first, second}
        [apply] = stage.hosts.asked_for("vm.net.apply")
        assert isinstance(apply, VmNetApply)
        assert [address.primary for address in apply.network.nics[0].addresses] == [True, False]


async def test_a_detached_address_is_free_once_the_host_has_let_go_of_it(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first, second = await primary(stage, vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        held = stage.hosts.plays["vm.net.release"] = Held()
        await stage.detach(vm_id, second)
        assert await stage.held(vm_id) == {first: "allocated", second: "releasing"}
        await held.until_reached()
        assert await stage.held(vm_id) == {first: "allocated", second: "releasing"}
        held.released.set()
        await stage.until_held(vm_id, {first: "allocated"})
        assert stage.hosts.carried(vm_id) == {first}


async def test_a_host_is_asked_to_release_only_after_it_has_applied_what_does_not_hold_it(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first, second = await primary(stage, vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        held = stage.hosts.plays["vm.net.apply"] = Held()
        await stage.detach(vm_id, second)
        await held.until_reached()
        assert stage.hosts.asked_for("vm.net.release") == []
        held.released.set()
        await stage.until_held(vm_id, {first: "allocated"})
        assert [operation.op for operation in stage.hosts.asked[-2:]] == ["vm.net.apply", "vm.net.release"]


async def test_a_start_that_was_slow_does_not_bring_a_released_address_back(database: Database) -> None:
    """The start was told of the address, reaches the host after the address was released, and must not carry it."""
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first, second = await primary(stage, vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        await stage.service.ended(
            await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        )
        held = stage.hosts.plays["vm.start"] = Held()
        start = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        await held.until_reached()
        await stage.detach(vm_id, second)
        assert stage.hosts.asked_for("vm.net.release") == []
        held.released.set()
        assert (await stage.service.ended(start)).status is TaskStatus.SUCCEEDED
        await stage.until_held(vm_id, {first: "allocated"})
        assert stage.hosts.carried(vm_id) == {first}


async def test_an_address_that_is_detached_at_the_last_moment_waits_for_its_own_apply(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first = await primary(stage, vm_id)
        second, third = await stage.attach(vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        still_held: list[set[str]] = []
        to_detach = [third]

        async def detach_meanwhile(queryable: Queryable, vm_id: UUID) -> ReleasingAddresses | None:
            while to_detach:
                await stage.detach(vm_id, to_detach.pop())
            return await releasing_of(queryable, vm_id)

        async def look(operation: NodeOperation) -> None:
            await trio.lowlevel.checkpoint()
            assert isinstance(operation, VmNetRelease)
            still_held.append(set(operation.addresses) & stage.hosts.carried(vm_id))

        monkeypatch.setattr(network_watch, "releasing_of", detach_meanwhile)
        stage.hosts.plays["vm.net.release"] = look
        await stage.detach(vm_id, second)
        await stage.until_held(vm_id, {first: "allocated"})
        assert still_held
        assert not any(still_held)


async def test_two_addresses_detached_at_once_are_both_released(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first = await primary(stage, vm_id)
        more = [await stage.attach(vm_id) for _ in range(2)]
        await stage.until_applied(vm_id)
        async with trio.open_nursery() as nursery:
            for address in more:
                nursery.start_soon(stage.detach, vm_id, address)
        await stage.until_held(vm_id, {first: "allocated"})
        assert stage.hosts.carried(vm_id) == {first}


async def test_a_change_while_one_is_applied_is_applied_after_it(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        held = stage.hosts.plays["vm.net.apply"] = Held()
        await changed(stage, vm_id)
        await held.until_reached()
        second = await stage.attach(vm_id)
        held.released.set()
        await stage.until_applied(vm_id)
        assert second in stage.hosts.carried(vm_id)
        generations = [
            each.network.generation for each in stage.hosts.asked_for("vm.net.apply") if isinstance(each, VmNetApply)
        ]
        assert generations == sorted(set(generations))


async def test_a_host_that_refuses_is_asked_again_and_the_alert_stands_until_it_succeeds(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.net.apply"] = failing("nft: table busy")
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        [message] = await stage.alerts("network:")
        assert "web" in message
        assert "alpha" in message
        assert "nft: table busy" in message
        vm = await stage.vm(vm_id)
        assert vm["net_error"] == "nft: table busy"
        assert vm["net_failed_at"] is not None
        del stage.hosts.plays["vm.net.apply"]
        await stage.until_applied(vm_id)
        assert await stage.alerts("network:") == []
        assert (await stage.vm(vm_id))["net_error"] is None


async def test_a_new_change_does_not_wait_for_the_pause_of_one_that_failed(database: Database) -> None:
    intervals = BRISK.__class__(round=0.05, gather=0.0, first_pause=3600.0, longest_pause=3600.0, between_retries=0.01)
    async with open_stage(database, intervals=intervals) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.net.apply"] = failing()
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        del stage.hosts.plays["vm.net.apply"]
        await changed(stage, vm_id)
        await stage.until_applied(vm_id)


async def test_a_start_that_brings_the_network_with_it_ends_the_alert(database: Database) -> None:
    intervals = BRISK.__class__(round=0.05, gather=0.0, first_pause=3600.0, longest_pause=3600.0, between_retries=0.01)
    async with open_stage(database, intervals=intervals) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.net.apply"] = failing()
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        for order in (Order.FORCE_STOP, Order.START):
            task = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, order)
            assert (await stage.service.ended(task)).status is TaskStatus.SUCCEEDED
        assert await stage.alerts("network:") == []


async def test_a_node_that_comes_back_is_tried_at_once(database: Database) -> None:
    intervals = BRISK.__class__(
        round=3600.0, gather=0.0, first_pause=3600.0, longest_pause=3600.0, between_retries=0.01
    )
    async with open_stage(database, intervals=intervals) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.net.apply"] = failing()
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        del stage.hosts.plays["vm.net.apply"]
        stage.watch.connected(stage.world.node_id)
        await stage.until_applied(vm_id)


async def test_an_offline_node_is_not_asked_and_brought_up_to_date_when_it_is_back(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.offline.add(stage.world.node_id)
        second = await stage.attach(vm_id)
        await trio.lowlevel.checkpoint()
        assert stage.hosts.asked_for("vm.net.apply") == []
        assert (await stage.vm(vm_id))["net_error"] is None
        stage.hosts.offline.clear()
        stage.watch.connected(stage.world.node_id)
        await stage.until_applied(vm_id)
        assert second in stage.hosts.carried(vm_id)


async def test_what_a_dead_controller_had_recorded_is_applied_by_the_next_one(database: Database) -> None:
    hosts = Hosts()
    async with open_stage(database, hosts=hosts) as stage:
        world = stage.world
        vm_id = await stage.machine()
        hosts.offline.add(world.node_id)
        second = await stage.attach(vm_id)
    hosts.offline.clear()
    async with open_stage(database, world=world, hosts=hosts) as stage:
        await stage.until_applied(vm_id)
        assert second in hosts.carried(vm_id)


async def test_an_outcome_that_a_dead_controller_never_stored_is_asked_for_again(database: Database) -> None:
    hosts = Hosts()
    held = hosts.plays["vm.net.apply"] = Held()
    async with open_stage(database, hosts=hosts) as stage:
        world = stage.world
        vm_id = await stage.machine()
        await changed(stage, vm_id)
        await held.until_reached()
    del hosts.plays["vm.net.apply"]
    async with open_stage(database, world=world, hosts=hosts) as stage:
        await stage.until_applied(vm_id)


async def test_a_deletion_while_the_network_is_applied_leaves_no_alert_and_no_address(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        held = stage.hosts.plays["vm.net.apply"] = Held()
        await stage.attach(vm_id)
        await held.until_reached()
        task = await stage.service.machine(vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        assert (await stage.service.ended(task)).status is TaskStatus.SUCCEEDED
        held.released.set()
        await stage.until_held(vm_id, {})
        assert stage.hosts.carried(vm_id) == set()
        assert await stage.alerts("network:") == []


async def test_a_deletion_ends_the_alert_about_the_machines_network(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.plays["vm.net.apply"] = failing()
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        task = await stage.service.machine(vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        assert (await stage.service.ended(task)).status is TaskStatus.SUCCEEDED
        assert await stage.alerts("network:") == []


async def test_a_deletion_takes_the_machine_out_of_its_groups(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id, other = await stage.machine(), await stage.machine("other")
        async with database.transaction() as tx:
            group = await create_group(
                tx,
                name="for all",
                description="",
                project_id=None,
                default_ingress=Action.DROP,
                default_egress=Action.ACCEPT,
            )
            for each in (vm_id, other):
                await set_groups(tx, each, [group["id"]])
        task = await stage.service.machine(vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        assert (await stage.service.ended(task)).status is TaskStatus.SUCCEEDED
        assert [row["vm_id"] for row in await database.fetch("SELECT vm_id FROM security_group_machines")] == [other]


async def test_what_a_failed_creation_held_is_freed_by_the_nodes_word(database: Database) -> None:
    async with open_stage(database) as stage:
        stage.hosts.plays["vm.create"] = failing("no space left")
        held = stage.hosts.plays["vm.net.release"] = Held()
        created = await stage.service.create(stage.world.machine())
        assert (await stage.service.ended(created.task)).status is TaskStatus.FAILED
        await held.until_reached()
        assert list((await stage.held(created.vm_id)).values()) == ["releasing"]
        held.released.set()
        await stage.until_held(created.vm_id, {})


async def test_an_address_that_was_freed_by_force_is_not_released_from_its_next_holder(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id, other = await stage.machine("web"), await stage.machine("other")
        first, second = await primary(stage, vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        held = stage.hosts.plays["vm.net.release"] = Held()
        await stage.detach(vm_id, second)
        await held.until_reached()
        async with stage.database.transaction() as tx:
            await force_free(tx, stage.world.pool_id, ip_address(second))
        await stage.attach(other, ip=ip_address(second))
        await stage.until_applied(other)
        held.released.set()
        await stage.until_held(vm_id, {first: "allocated"})
        assert (await stage.held(other))[second] == "allocated"
        assert second in stage.hosts.carried(other)
        assert all(
            each.vm_id == vm_id for each in stage.hosts.asked_for("vm.net.release") if isinstance(each, VmNetRelease)
        )


async def test_a_host_that_names_less_than_it_was_asked_frees_only_that(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first, second = await primary(stage, vm_id), await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        networks = stage.host.networks
        release = networks.release
        networks.release = lambda vm_id, addresses: ()  # type: ignore[method-assign]
        await stage.detach(vm_id, second)
        await stage.service.until_asked("vm.net.release", 2)
        assert await stage.held(vm_id) == {first: "allocated", second: "releasing"}
        networks.release = release  # type: ignore[method-assign]
        await stage.until_held(vm_id, {first: "allocated"})


async def test_a_host_ahead_of_the_record_is_overtaken(database: Database) -> None:
    """As after the database was put back from a copy: the host would take every order for an older one."""
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        first = await primary(stage, vm_id)
        stage.host.networks.drift(vm_id, carried=[first, "10.77.9.9"], generation=500)
        await changed(stage, vm_id)
        await stage.until_applied(vm_id)

        async def agrees() -> bool:
            await trio.lowlevel.checkpoint()
            return stage.hosts.carried(vm_id) == {first}

        await stage.until(agrees)
        assert (await stage.vm(vm_id))["net_applied"] > 500


async def test_an_interrupted_apply_is_no_failure_of_the_host(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        asked = 0

        async def interrupt_once(_: NodeOperation) -> None:
            nonlocal asked
            asked += 1
            if asked == 1:
                await failing("the agent was restarted", FailureCode.INTERRUPTED)(_)

        stage.hosts.plays["vm.net.apply"] = interrupt_once
        await changed(stage, vm_id)
        await stage.until_applied(vm_id)
        assert await stage.database.fetchval("SELECT count(*) FROM alerts WHERE starts_with(key, 'network:')") == 0


async def test_a_node_that_hangs_holds_up_no_other(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine("web", node_id=stage.world.node_id)
        node_id = await another_node(stage, "beta")
        other = await stage.machine("other", node_id=node_id)
        hanging = Held()

        async def hang(operation: NodeOperation) -> None:
            if isinstance(operation, VmNetApply) and operation.vm_id == vm_id:
                await hanging(operation)

        stage.hosts.plays["vm.net.apply"] = hang
        await changed(stage, vm_id)
        await hanging.until_reached()
        await changed(stage, other)
        await stage.until_applied(other)
        assert (await stage.vm(vm_id))["net_applied"] < (await stage.vm(vm_id))["net_wanted"]


async def test_a_machine_that_hangs_holds_up_none_of_its_node(database: Database) -> None:
    async with open_stage(database) as stage:
        stuck, other = await stage.machine("stuck"), await stage.machine("other")
        hanging = Held()

        async def hang(operation: NodeOperation) -> None:
            if isinstance(operation, VmNetApply) and operation.vm_id == stuck:
                await hanging(operation)

        stage.hosts.plays["vm.net.apply"] = hang
        await changed(stage, stuck, other)
        await hanging.until_reached()
        await stage.until_applied(other)
        await changed(stage, other)
        await stage.until_applied(other)


async def test_many_machines_behind_are_worked_off_a_bounded_number_at_a_time(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_ids = await (await Records.of(database)).machines(stage.world.node_id, stage.host, 250)
        held = stage.hosts.plays["vm.net.apply"] = Held()
        await changed(stage, *vm_ids)

        async def full() -> bool:
            await trio.lowlevel.checkpoint()
            return stage.hosts.at_once >= BRISK.at_once

        await stage.until(full)
        held.released.set()
        with trio.fail_after(60):
            while await stage.database.fetchval("SELECT count(*) FROM vms WHERE net_applied < net_wanted"):
                await trio.sleep(0.02)
        applied = [each.vm_id for each in stage.hosts.asked_for("vm.net.apply") if isinstance(each, VmNetApply)]
        assert sorted(applied) == sorted(vm_ids)
        assert stage.hosts.most_at_once == BRISK.at_once


async def test_a_start_that_a_dead_controller_asked_for_is_not_taken_for_a_later_change(database: Database) -> None:
    """The node did it and journalled it; the next controller asks again, and the answer is of the first order."""
    hosts = Hosts()
    async with open_stage(database, hosts=hosts) as stage:
        world = stage.world
        vm_id = await stage.machine()
        await stage.service.ended(
            await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        )
        held = hosts.plays["vm.start"] = Held()
        task = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        await held.until_reached()
        asked_id, asked = hosts.asked_ids[-1], hosts.asked[-1]
    hosts.journal[asked_id] = await hosts.hosts[world.node_id].perform(asked, unheard)
    await database.execute("UPDATE vms SET rate_mbps = 33, net_wanted = net_wanted + 1 WHERE id = $1", vm_id)
    async with open_stage(database, world=world, hosts=hosts) as stage:
        assert (await stage.service.ended(task)).status is TaskStatus.SUCCEEDED
        await stage.until_applied(vm_id)
        assert stage.host.networks.networks[vm_id].spec.nics[0].rate_mbps == 33


async def test_a_host_that_names_a_generation_beyond_belief_is_not_followed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        perform = stage.host.perform

        async def boast(operation: NodeOperation, report: Report) -> OperationResult:
            result = await perform(operation, report)
            return result.model_copy(update={"generation": 2**62}) if isinstance(result, NetworkResult) else result

        monkeypatch.setattr(stage.host, "perform", boast)
        await changed(stage, vm_id)
        await stage.until_alerts("network:", 1)
        assert (await stage.vm(vm_id))["net_wanted"] == 2
        monkeypatch.undo()
        await stage.until_applied(vm_id)
        assert await stage.alerts("network:") == []
