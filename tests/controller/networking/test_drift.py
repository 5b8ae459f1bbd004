"""What a probe finds: shown on every node, mended on a managed one, and never mistaken for what is under way."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
import trio

from svc.registry.principal import Role
from svc_actors.alerts import raise_alert
from svc_actors.controller.machines.spec import held_network
from svc_actors.controller.networking.drift import MOST_KEPT, NetworkDrift, RecordedNetwork, compare
from svc_actors.controller.networking.pool_arithmetic import IPNetwork
from svc_actors.controller.networking.pool_records import lock_pool
from svc_actors.controller.nodes.node import Node
from svc_actors.controller.nodes.records import get_node
from svc_actors.controller.reconcile.orphans import RESTORED_ALERT
from svc_actors.store import Database, Record, Transaction
from svc_nodeagent.protocol import (
    MANY,
    InventoryResult,
    NodeInventory,
    NodeNetProbe,
    NodeOperation,
    ObservedNetwork,
    ObservedTap,
    ProbeResult,
    VmNetApply,
    VmNetRelease,
)
from tests.support.networking import Held, NetworkHarness, open_stage

VM = UUID(int=1)


def recorded(**changes: object) -> RecordedNetwork:
    values: dict[str, object] = {
        "vm_id": VM,
        "name": "web",
        "wanted": 5,
        "applied": 5,
        "isolated": False,
        "networks": frozenset({network("10.0.0.5")}),
        "settled": True,
    }
    return RecordedNetwork(**(values | changes))  # type: ignore[arg-type]


def network(text: str) -> IPNetwork:
    return held_network(text)


def observed(**changes: object) -> ObservedNetwork:
    values: dict[str, object] = {"vm_id": VM, "generation": 5, "addresses": ("10.0.0.5",), "isolated": False}
    return ObservedNetwork.model_validate(values | changes)


def judged(record: RecordedNetwork, *networks: ObservedNetwork, taps: tuple[ObservedTap, ...] = ()) -> list[str]:
    probe = ProbeResult(taps=taps, machines=networks, ruleset_digest="")
    found: NetworkDrift = compare({record.vm_id: record}, {record.vm_id: record}, probe)
    return [each.problem for each in found.differences]


def test_a_host_that_has_what_is_recorded_agrees() -> None:
    assert judged(recorded(), observed()) == []
    assert judged(recorded(), observed(addresses=("10.0.0.5/32",))) == []
    v6 = recorded(networks=frozenset({network("2001:db8:0:5::/64")}))
    assert judged(v6, observed(addresses=("2001:db8:0:5::/64",))) == []


def test_a_host_that_makes_differences_up_has_some_hundred_kept_and_a_count() -> None:
    strays = [observed(vm_id=uuid4(), addresses=("10.0.0.6",), differences=("x" * 4_000,)) for _ in range(MANY)]
    probe = ProbeResult(taps=(), machines=tuple(strays), ruleset_digest="")
    found = compare({}, {}, probe)
    assert (len(found.differences), len(found.strays)) == (MOST_KEPT + 1, MOST_KEPT)
    assert found.differences[-1].problem == f"{MANY - MOST_KEPT} more differences are not shown."
    assert [len(problem) for problem in judged(recorded(), observed(differences=("x" * 4_000,)))] == [500]


def test_each_way_of_being_other_is_named() -> None:
    assert judged(recorded()) == ["The host carries no network for it."]
    assert judged(recorded(), observed(generation=4)) == ["The host has generation 4; 5 was applied."]
    assert judged(recorded(), observed(generation=9)) == ["The host has generation 9, and only 5 is recorded."]
    assert judged(recorded(), observed(isolated=True)) == ["It is isolated on the host."]
    assert judged(recorded(isolated=True), observed(isolated=False)) == ["It is not isolated on the host."]
    assert judged(recorded(), observed(addresses=())) == ["10.0.0.5 is not carried."]
    assert judged(recorded(), observed(addresses=("10.0.0.5", "10.0.0.6"))) == ["10.0.0.6 is carried and not recorded."]
    assert judged(recorded(), observed(differences=("The rate is not held.",))) == ["The rate is not held."]


def test_an_unguarded_tap_is_a_difference_and_one_that_is_down_is_not() -> None:
    tap = ObservedTap(device="svc0", vm_id=VM, up=True, routes=(), filtered=False)
    assert judged(recorded(), observed(), taps=(tap,)) == ["Its tap svc0 is up without the rules against spoofing."]
    assert judged(recorded(), observed(), taps=(tap.model_copy(update={"up": False}),)) == []
    nobody = tap.model_copy(update={"vm_id": None})
    assert judged(recorded(), observed(), taps=(nobody,)) == ["The tap svc0 belongs to no machine."]


def test_a_machine_that_changed_while_the_host_was_asked_is_not_judged() -> None:
    probe = ProbeResult(taps=(), machines=(observed(generation=5),), ruleset_digest="")
    before, after = recorded(), recorded(wanted=6, applied=6)
    assert compare({VM: before}, {VM: after}, probe).differences == ()
    assert compare({VM: before}, {}, probe).differences == ()
    assert compare({}, {VM: after}, probe).differences == ()
    assert judged(recorded(settled=False), observed(generation=1)) == []


async def seen(stage: NetworkHarness) -> tuple[bool | None, list[tuple[str | None, str]]]:
    shown = await (await stage.api(Role.STAFF))("node.network", id=stage.world.node_id)
    return shown.agrees, [(each.vm_name, each.problem) for each in shown.differences]


async def test_a_node_that_was_never_asked_neither_agrees_nor_differs(database: Database) -> None:
    async with open_stage(database) as stage:
        assert await seen(stage) == (None, [])


async def test_a_node_that_agrees_shows_its_taps_by_machine(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        await stage.probe.probe(stage.world.node_id)
        shown = await (await stage.api(Role.STAFF))("node.network", id=stage.world.node_id)
        assert shown.agrees is True
        assert shown.probed_at is not None
        assert [(tap.vm_id, tap.vm_name, tap.up) for tap in shown.taps] == [(vm_id, "web", True)]
        assert await stage.alerts("network-drift:") == []


async def test_what_a_probe_found_is_read_where_it_is_shown_and_not_with_every_look_at_a_node(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand machines it is hundreds of kilobytes, and nodes are looked at with every order and every report."""
    read: list[str] = []
    fetch, fetchrow = Transaction.fetch, Transaction.fetchrow

    async def fetching(self: Transaction, sql: str, *args: object) -> list[Record]:
        rows = await fetch(self, sql, *args)
        read.extend(name for row in rows[:1] for name in row.keys())  # noqa: SIM118 - a record iterates over values
        return rows

    async def fetching_row(self: Transaction, sql: str, *args: object) -> Record | None:
        row = await fetchrow(self, sql, *args)
        read.extend(row.keys() if row is not None else ())
        return row

    async with open_stage(database) as stage:
        monkeypatch.setattr(Transaction, "fetch", fetching)
        monkeypatch.setattr(Transaction, "fetchrow", fetching_row)
        await stage.machine()
        async with database.transaction() as tx:
            await get_node(tx, stage.world.node_id, lock=True)
    assert "memory_overcommit" in read
    assert "network_probe" not in read


async def test_drift_on_a_managed_node_is_shown_and_mended(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id, other = await stage.machine("web"), await stage.machine("other")
        stage.host.networks.drift(vm_id, carried=["10.77.0.2", "10.77.0.99"])
        await stage.probe.probe(stage.world.node_id)
        assert await seen(stage) == (False, [("web", "10.77.0.99 is carried and not recorded.")])
        [message] = await stage.alerts("network-drift:")
        assert "web: 10.77.0.99 is carried and not recorded." in message
        assert stage.rechecked == [stage.world.node_id]
        await stage.until_applied(vm_id)
        assert stage.hosts.carried(vm_id) == {"10.77.0.2"}
        assert [each.vm_id for each in stage.hosts.asked_for("vm.net.apply") if isinstance(each, VmNetApply)] == [vm_id]
        assert stage.hosts.carried(other) == {"10.77.0.3"}
        await stage.probe.probe(stage.world.node_id)
        assert await seen(stage) == (True, [])
        assert await stage.alerts("network-drift:") == []


async def test_drift_on_an_observed_node_is_only_shown(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        await stage.mode("observe")
        stage.host.networks.drift(vm_id, carried=[])
        stage.host.networks.drift(uuid4(), carried=["10.77.0.50"])
        asked = len(stage.hosts.asked)
        await stage.probe.probe(stage.world.node_id)
        assert (await seen(stage))[0] is False
        assert len(await stage.alerts("network-drift:")) == 1
        assert [operation.op for operation in stage.hosts.asked[asked:]] == ["node.net.probe"]
        vm = await stage.vm(vm_id)
        assert vm["net_applied"] == vm["net_wanted"]


async def test_what_a_deleted_machine_has_left_is_released_on_a_managed_node(database: Database) -> None:
    async with open_stage(database) as stage:
        await stage.machine()
        stray = await stage.machine("gone")
        await database.execute("DELETE FROM allocations WHERE vm_id = $1", stray)
        await database.execute("UPDATE vms SET status = 'deleted', deleted_at = now() WHERE id = $1", stray)
        stage.host.networks.drift(stray, carried=["10.77.0.50"])
        await stage.probe.probe(stage.world.node_id)
        problem = "No machine of this id is recorded here; it carries 10.77.0.50."
        assert await seen(stage) == (False, [("gone", problem)])
        assert stage.hosts.carried(stray) == set()
        [release] = stage.hosts.asked_for("vm.net.release")
        assert isinstance(release, VmNetRelease)
        assert release.vm_id == stray
        await stage.probe.probe(stage.world.node_id)
        assert await seen(stage) == (True, []), "what its host still knows of the machine carries nothing"
        assert await stage.alerts("network-drift:") == []


async def test_what_a_machine_without_a_record_carries_is_left_to_it_and_given_to_nobody(database: Database) -> None:
    async with open_stage(database) as stage:
        await stage.machine()
        unknown = uuid4()
        stage.host.networks.drift(unknown, carried=["10.77.0.3"])

        await stage.probe.probe(stage.world.node_id)

        next_one = await stage.machine("next")
        assert stage.hosts.carried(unknown) == {"10.77.0.3"}
        assert stage.hosts.carried(next_one) == {"10.77.0.4"}, "10.77.0.3 was next"
        stage.host.networks.drift(unknown, carried=[])
        await stage.probe.probe(stage.world.node_id)
        blocked = await database.fetch("SELECT ip FROM allocations WHERE state = 'blocked'")
        assert blocked == [], "its host carries it no more"


async def test_a_host_sets_nothing_aside_in_a_pool_that_does_not_serve_it(database: Database) -> None:
    async with open_stage(database) as stage:
        await stage.machine()
        other = await database.fetchval(
            """INSERT INTO nodes (name, location_id, host_uuid)
               SELECT 'other', location_id, gen_random_uuid() FROM nodes LIMIT 1 RETURNING id"""
        )
        await database.execute("UPDATE pools SET node_ids = ARRAY[$1::uuid]", other)
        stage.host.networks.drift(uuid4(), carried=["10.77.0.3"])

        await stage.probe.probe(stage.world.node_id)

        blocked = await database.fetch("SELECT ip FROM allocations WHERE state = 'blocked'")
        assert blocked == []


async def test_a_host_that_makes_addresses_up_takes_no_pool_away_from_others(database: Database) -> None:
    async with open_stage(database) as stage:
        await stage.machine()
        pool = await database.fetchone("UPDATE pools SET last_slot = first_slot + 99 RETURNING first_slot, cidr")
        hosts = [str(pool["cidr"].network_address + pool["first_slot"] + number) for number in range(100)]
        strays = {uuid4(): hosts[:50], uuid4(): hosts[50:], uuid4(): ["0.0.0.0/0", str(pool["cidr"])]}
        for vm_id, carried in strays.items():
            stage.host.networks.drift(vm_id, carried=carried)

        await stage.probe.probe(stage.world.node_id)
        set_aside = await carried_slots(database)
        await stage.probe.probe(stage.world.node_id)

        # A quarter of the pool, those included that the gateway and the machine hold.
        assert 20 <= len(set_aside) < 25
        assert set(set_aside) < {pool["first_slot"] + number for number in range(25)}
        assert await carried_slots(database) == set_aside, "they stay the same"
        [alert] = await stage.alerts("carried:")
        assert "carries 102 addresses for 3 machines" in alert
        assert "77 of them are not reserved" in alert
        assert await stage.machine("next"), "the pool still gives out addresses"

        for vm_id in strays:
            stage.host.networks.drift(vm_id, carried=[])
        await stage.probe.probe(stage.world.node_id)
        assert await carried_slots(database) == []
        assert await stage.alerts("carried:") == []


async def test_after_a_restore_all_that_a_host_carries_is_set_aside(database: Database) -> None:
    async with open_stage(database) as stage:
        await database.execute("UPDATE pools SET last_slot = first_slot + 99")
        async with database.transaction() as tx:
            await raise_alert(tx, RESTORED_ALERT, "The controller was restored.")
            await tx.execute("UPDATE nodes SET unheard = true")
            await tx.execute(
                """INSERT INTO nodes (name, location_id, host_uuid, unheard)
                   SELECT 'other', location_id, gen_random_uuid(), true FROM nodes LIMIT 1"""
            )
        stage.host.networks.drift(uuid4(), carried=[f"10.77.0.{number}" for number in range(10, 60)])

        await stage.probe.probe(stage.world.node_id)

        assert len(await carried_slots(database)) == 50
        assert await stage.alerts("carried:") == []


async def carried_slots(database: Database) -> list[int]:
    return [row["slot"] for row in await database.fetch("SELECT slot FROM allocations WHERE carried ORDER BY slot")]


async def test_a_machine_that_is_recorded_on_another_node_is_not_released_from_this_one(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        location = stage.world.location_id
        beta = await database.fetchval(
            "INSERT INTO nodes (name, location_id, state, host_uuid) VALUES ('beta', $1, 'online', $2) RETURNING id",
            location,
            uuid4(),
        )
        await database.execute("UPDATE vms SET node_id = $2 WHERE id = $1", vm_id, beta)
        await stage.probe.probe(stage.world.node_id)
        assert (await seen(stage))[0] is False
        assert stage.hosts.carried(vm_id) == {"10.77.0.2"}


async def test_a_host_that_is_ahead_of_the_record_is_brought_back(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stage.host.networks.drift(vm_id, carried=["10.77.0.2"], generation=900)
        await stage.probe.probe(stage.world.node_id)
        await stage.until_applied(vm_id)
        assert (await stage.vm(vm_id))["net_applied"] > 900
        await stage.probe.probe(stage.world.node_id)
        assert await seen(stage) == (True, [])


async def test_what_is_being_changed_while_the_host_is_asked_is_no_drift(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        held = Held()

        async def answer_late(operation: NodeOperation) -> None:
            if isinstance(operation, NodeNetProbe):
                await held(operation)

        stage.hosts.plays["node.net.probe"] = answer_late
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.probe.probe, stage.world.node_id)
            await held.until_reached()
            await stage.attach(vm_id)
            await stage.until_applied(vm_id)
            held.released.set()
        assert await seen(stage) == (True, [])


async def test_drift_that_stays_is_said_once_and_the_node_is_not_asked_again_at_once(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        for _ in range(3):
            stage.host.networks.drift(vm_id, differences="The rate is not held.")
            await stage.probe.probe(stage.world.node_id)
            await stage.until_applied(vm_id)
        assert stage.rechecked == [stage.world.node_id]
        assert len(await stage.alerts("network-drift:")) == 1
        changes = await database.fetchval(
            """SELECT count(*) FROM (SELECT payload FROM event_inbox WHERE kind = 'node'
                                     UNION ALL SELECT payload FROM event WHERE kind = 'node') told
               WHERE payload->>'change' = 'network_drift'"""
        )
        assert changes == 1


async def test_a_machine_is_placed_while_its_node_reports_other_addresses_of_its_host(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id, node_id = await stage.machine(), stage.world.node_id
        inventory = await stage.hosts.query(node_id, NodeInventory(), timeout=1)
        assert isinstance(inventory, InventoryResult)
        facts = inventory.facts.model_copy(update={"host_addresses": ("10.77.0.200/24",)})
        report = inventory.model_copy(update={"facts": facts})
        async with trio.open_nursery() as nursery:
            async with database.transaction() as tx:  # As a creation has it: first the node's room, then the pool.
                await tx.execute("UPDATE vms SET node_id = NULL WHERE id = $1", vm_id)
                await tx.execute("UPDATE vms SET node_id = $2 WHERE id = $1", vm_id, node_id)
                node = stage.service.actors.ref(Node, str(node_id))
                nursery.start_soon(node.ask, Node.inventoried, report, datetime.now(UTC))
                with trio.fail_after(60):
                    while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                        await trio.lowlevel.checkpoint()
                await lock_pool(tx, stage.world.pool_id)
        kept = await database.fetch("SELECT note FROM reservations WHERE kind = 'host'")
        assert [row["note"] for row in kept] == ["an address of the host alpha"]
