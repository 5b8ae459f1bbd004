"""A controller restored from a backup: what it leaves alone, and what it does not give out, until hosts were heard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from svc_actors.controller.machines.adoption import adopt_differing, kept_machine
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.reconcile.orphans import stop_awaiting_report
from svc_actors.controller.reconcile.restored import SKIPPED_RELEASES, record_restoration
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import DomainState
from tests.support.callers import ADMINISTRATOR
from tests.support.networking import Held, NetworkHarness, open_stage


async def restore(database: Database) -> None:
    await database.transact(
        partial(record_restoration, taken_at=datetime.now(UTC) - timedelta(hours=1), release="0.1.0")
    )


async def inventory(stage: NetworkHarness) -> None:
    """What the node's inventory says of its domains."""
    for vm_id, machine in stage.host.machines.items():
        await stage.database.execute(
            """INSERT INTO observed_domains (node_id, uuid, name, vm_id, state, vcpus, memory_mib, seen_at)
               VALUES ($1, $2, $3, $2, $4, 1, 512, now()) ON CONFLICT DO NOTHING""",
            stage.world.node_id,
            vm_id,
            machine.name,
            machine.state.value,
        )


async def refused(stage: NetworkHarness, vm_id: UUID, order: Order) -> ServiceError:
    with pytest.raises(ServiceError) as refusal:
        await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, order)
    return refusal.value


async def test_until_a_node_was_heard_its_pools_give_out_nothing(database: Database) -> None:
    async with open_stage(database) as stage:
        await restore(database)

        with pytest.raises(ServiceError) as refusal:
            await stage.machine()

        assert refusal.value.code is ErrorCode.UNAVAILABLE
        assert "node alpha has not reported yet" in refusal.value.message
        await stage.probe.probe(stage.world.node_id)
        assert await stage.held(await stage.machine()) == {"10.77.0.2": "allocated"}


async def test_a_node_that_is_written_off_holds_up_no_pool(database: Database) -> None:
    async with open_stage(database) as stage:
        await restore(database)

        assert await database.transact(partial(stop_awaiting_report, node_id=stage.world.node_id))

        assert await stage.held(await stage.machine()) == {"10.77.0.2": "allocated"}


async def test_a_machine_takes_no_orders_until_its_host_has_shown_it_as_recorded(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        await restore(database)

        refusal = await refused(stage, vm_id, Order.SHUTDOWN)

        assert refusal.code is ErrorCode.UNAVAILABLE
        assert "restored from a backup" in refusal.message
        await inventory(stage)
        await stage.probe.probe(stage.world.node_id)
        await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.SHUTDOWN)
        assert await stage.alerts("controller-restored") == [], "nothing is left to be compared"


async def test_an_address_that_was_attached_since_stays_and_is_adopted(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        before = await stage.vm(vm_id)
        extra = await stage.attach(vm_id)
        await stage.until_applied(vm_id)
        await database.execute("DELETE FROM allocations WHERE address_text(ip) = $1", extra)
        await database.execute(
            "UPDATE vms SET net_wanted = $2, net_applied = $2 WHERE id = $1", vm_id, before["net_wanted"]
        )
        await restore(database)
        await inventory(stage)

        await stage.probe.probe(stage.world.node_id)

        assert stage.hosts.carried(vm_id) == {"10.77.0.2", extra}, "nothing is taken from it"
        assert await stage.held(await stage.machine("other")) != {extra: "allocated"}
        assert len(await stage.alerts("orphans:")) == 1
        kept = await kept_machine(stage.hosts, stage.world.node_id, vm_id)

        async def adopt(tx: Transaction) -> None:
            await adopt_differing(tx, ADMINISTRATOR, kept, DomainState.RUNNING)

        await database.transact(adopt)
        assert await stage.held(vm_id) == {"10.77.0.2": "allocated", extra: "allocated"}
        await stage.until_applied(vm_id)
        assert stage.hosts.carried(vm_id) == {"10.77.0.2", extra}


async def test_an_order_of_the_backup_is_ended_and_not_carried_out(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        held = Held()
        stage.hosts.plays["vm.shutdown"] = held
        task = await stage.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.SHUTDOWN)
        await held.until_reached()
    del stage.hosts.plays["vm.shutdown"]
    await restore(database)
    asked = len(stage.hosts.asked)

    async with open_stage(database, world=stage.world, hosts=stage.hosts) as again:
        row = await database.fetchone("SELECT status, error_message FROM tasks WHERE id = $1", task.id)
        vm = await again.vm(vm_id)

    assert row["status"] == "failed"
    assert row["error_message"].startswith("Interrupted: the controller was restored from a backup and shows ")
    assert vm["status"] == "running"
    assert [each.op for each in stage.hosts.asked[asked:]] == []


async def test_every_sequence_goes_on_above_what_was_lost_or_is_known_inside_alone(database: Database) -> None:
    inside = {
        *("event_inbox_id_seq", "audit_id_seq", "password_asks_id_seq"),
        *("service_events_id_seq", "restorations_id_seq", "controller_backups_id_seq", "traffic_decisions_id_seq"),
    }
    names = {row["name"] for row in await database.fetch("SELECT sequencename AS name FROM pg_sequences")}
    before = await database.fetchval("SELECT nextval('releases')")
    await restore(database)

    assert names == {*inside, "releases"}
    assert await database.fetchval("SELECT nextval('releases')") > before + SKIPPED_RELEASES
