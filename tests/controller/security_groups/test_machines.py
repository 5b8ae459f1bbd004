"""Machines in groups: put into them and taken out, what their hosts are then told, and who may do it."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Any
from uuid import UUID, uuid4

import trio

from svc_actors.controller.machines.spec import network_spec
from svc_actors.controller.networking.addresses import allocate
from svc_actors.controller.networking.security_groups import MAX_GROUPS_OF_A_MACHINE, set_groups
from svc_nodeagent.protocol import Action, Direction, Firewall, FirewallRule, TransportProtocol
from tests.support.harness import said
from tests.support.security_groups import HTTPS, SecurityGroupHarness, made, refusal


async def firewall(place: SecurityGroupHarness, vm_id: UUID) -> Firewall | None:
    """What the machine's host is told at the next occasion."""
    return (await network_spec(place.database, vm_id)).firewall


async def test_the_set_of_groups_is_replaced_whole_and_an_empty_one_filters_nothing(
    place: SecurityGroupHarness,
) -> None:
    vm_id = await place.machine()
    web, ssh, shared = (
        await place.group(place.ada, "web"),
        await place.group(place.ada, "ssh"),
        await place.group(place.root),
    )
    await place.rule(place.ada, web)
    for groups in ([web, ssh], [ssh, shared], []):
        before = await place.wanted(vm_id)
        answer = await place.put(place.ada, vm_id, groups)
        assert answer.status_code == 200, answer.text
        shown = sorted(group["id"] for group in answer.json()["groups"])
        assert shown == sorted(group["id"] for group in groups)
        assert await place.wanted(vm_id) > before
        told = await firewall(place, vm_id)
        assert (told is None) == (groups == [])
        if told is not None:
            assert len(told.rules) == (1 if web in groups else 0)


async def test_the_strictest_default_of_a_machines_groups_holds(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine()
    lax = await place.group(place.ada, "lax", default_ingress="accept")
    closed = await place.group(place.ada, "closed", default_egress="drop")
    await place.put(place.ada, vm_id, [lax, closed])
    told = await firewall(place, vm_id)
    assert told is not None
    assert (told.default_ingress, told.default_egress) == (Action.DROP, Action.DROP)


async def test_a_host_is_told_each_rule_as_it_was_said_and_what_drops_first(place: SecurityGroupHarness) -> None:
    vm_id, group = await place.machine(), await place.group(place.ada)
    said: list[dict[str, object]] = [
        {"direction": "ingress", "protocol": "tcp", "port_from": 80, "port_to": 90, "cidr": "192.0.2.0/24"},
        {"direction": "ingress", "protocol": "icmp", "cidr": "2001:db8::1", "icmp_type": 128},
        {"direction": "egress", "protocol": "udp", "family": 4, "port_from": 53},
        {"direction": "egress", "protocol": "any", "action": "drop"},
    ]
    for values in said:
        made(await place.ada.post(f"/security-groups/{group['id']}/rules", values))
    await place.put(place.ada, vm_id, [group])
    told = await firewall(place, vm_id)
    assert told is not None
    assert told.rules == (
        FirewallRule(direction=Direction.EGRESS, protocol=TransportProtocol.ANY, action=Action.DROP),
        FirewallRule(
            direction=Direction.INGRESS,
            protocol=TransportProtocol.TCP,
            family=4,
            ports=(80, 90),
            cidr=IPv4Network("192.0.2.0/24"),
        ),
        FirewallRule(
            direction=Direction.INGRESS,
            protocol=TransportProtocol.ICMP,
            family=6,
            cidr=IPv6Network("2001:db8::1/128"),
            icmp_type=128,
        ),
        FirewallRule(direction=Direction.EGRESS, protocol=TransportProtocol.UDP, family=4, ports=(53, 53)),
    )


async def test_a_changed_rule_reaches_every_machine_in_the_group_and_no_other(place: SecurityGroupHarness) -> None:
    web, other = await place.group(place.ada, "web"), await place.group(place.ada, "other")
    inside = [await place.machine(f"in-{number}") for number in range(3)]
    outside = await place.machine("out")
    for vm_id in inside:
        await place.put(place.ada, vm_id, [web, other])
    await place.put(place.ada, outside, [other])
    everybody = [*inside, outside]

    async def marked() -> list[bool]:
        return [now > then for now, then in zip([await place.wanted(vm) for vm in everybody], before, strict=True)]

    before = [await place.wanted(vm) for vm in everybody]
    rule = await place.rule(place.ada, web)
    assert await marked() == [True, True, True, False]
    before = [await place.wanted(vm) for vm in everybody]
    await place.ada.call("DELETE", f"/security-groups/{web['id']}/rules/{rule['id']}")
    assert await marked() == [True, True, True, False]


async def test_a_group_in_use_is_not_deleted_and_says_by_whom_it_is_used(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine("alpha")
    group = await place.group(place.ada)
    await place.put(place.ada, vm_id, [group])
    refused = await place.ada.call("DELETE", f"/security-groups/{group['id']}")
    assert refusal(refused) == (409, "conflict")
    assert "alpha" in refused.json()["error"]["message"]
    shown = (await place.ada.get(f"/security-groups/{group['id']}")).json()
    assert (shown["machine_count"], shown["machines"]) == (1, [{"id": str(vm_id), "name": "alpha"}])
    await place.put(place.ada, vm_id, [])
    assert (await place.ada.call("DELETE", f"/security-groups/{group['id']}")).status_code == 204


async def test_a_deleted_machine_keeps_no_group(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine()
    group = await place.group(place.ada)
    await place.put(place.ada, vm_id, [group])
    await place.database.execute("UPDATE vms SET deleted_at = now() WHERE id = $1", vm_id)
    assert (await place.ada.get(f"/security-groups/{group['id']}")).json()["machine_count"] == 0
    assert (await place.ada.call("DELETE", f"/security-groups/{group['id']}")).status_code == 204


async def test_a_machine_uses_groups_of_its_own_project_and_those_for_all(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine(owner="ada")
    own, foreign = await place.group(place.ada), await place.group(place.eve)
    await place.put(place.ada, vm_id, [own])
    for client in (place.ada, place.root):
        answers = [await place.put(client, vm_id, [own, other]) for other in (foreign, {"id": str(uuid4())})]
        assert [refusal(answer) for answer in answers] == [(404, "not_found")] * 2
        assert said(answers[0])["details"] == {"group_ids": [foreign["id"]]}
    networking = (await place.ada.get(f"/vms/{vm_id}/networking")).json()
    assert [group["id"] for group in networking["groups"]] == [own["id"]]


async def test_nobody_changes_the_groups_of_a_foreign_machine(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine("canary", owner="eve")
    group = await place.group(place.ada)
    foreign, absent = [await place.put(place.ada, chosen, [group]) for chosen in (vm_id, uuid4())]
    assert refusal(foreign) == (404, "not_found")
    assert said(foreign) == said(absent)
    assert await firewall(place, vm_id) is None


async def test_a_customer_is_told_of_their_own_machines_in_a_group_for_all(place: SecurityGroupHarness) -> None:
    group = await place.group(place.root, "for-all")
    for owner in ("ada", "eve"):
        vm_id = await place.machine(f"of-{owner}", owner=owner)
        await place.put(place.root, vm_id, [group])
    seen = {
        who: [machine["name"] for machine in (await client.get(f"/security-groups/{group['id']}")).json()["machines"]]
        for who, client in (("ada", place.ada), ("root", place.root))
    }
    assert seen == {"ada": ["of-ada"], "root": ["of-ada", "of-eve"]}
    assert (await place.ada.get("/security-groups")).json()["items"][0]["machine_count"] == 1


async def test_a_machine_is_in_no_more_groups_than_it_may(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine()
    groups = [await place.group(place.ada, f"g{number}") for number in range(MAX_GROUPS_OF_A_MACHINE + 1)]
    assert refusal(await place.put(place.ada, vm_id, groups)) == (400, "invalid")
    assert (await place.put(place.ada, vm_id, groups[1:])).status_code == 200


async def test_a_body_without_the_set_changes_nothing(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine()
    group = await place.group(place.ada)
    await place.put(place.ada, vm_id, [group])
    assert refusal(await place.ada.call("PUT", f"/vms/{vm_id}/security-groups", {})) == (400, "invalid")
    assert await firewall(place, vm_id) is not None


async def bridged(place: SecurityGroupHarness, **facts: object) -> UUID:
    """A machine with an address on a bridged pool, on a host with these facts."""
    database = place.database
    location = await database.fetchval("SELECT id FROM locations LIMIT 1")
    node = await database.fetchval(
        "INSERT INTO nodes (name, location_id, host_uuid, facts) VALUES ('n', $1, $2, $3) RETURNING id",
        location,
        uuid4(),
        facts,
    )
    vm_id = await place.machine(node=node)
    network = await database.fetchval("SELECT id FROM networks LIMIT 1")
    wanted = {"name": "bridged", "cidr": "192.0.2.0/24", "topology": "bridged", "gateway_mode": "subnet"}
    pool = made(await place.root.post(f"/networks/{network}/pools", wanted))
    nic = await database.fetchval(
        "INSERT INTO nics (vm_id, network_id, position, mac) VALUES ($1, $2, 0, '52:54:00:00:00:01') RETURNING id",
        vm_id,
        network,
    )
    async with database.transaction() as tx:
        await allocate(tx, UUID(pool["id"]), vm_id=vm_id, nic_id=nic, primary=True)
    return vm_id


async def test_a_bridged_machine_is_put_into_no_group_that_its_host_cannot_keep(place: SecurityGroupHarness) -> None:
    why = "The kernel has no connection tracking in the bridge family."
    vm_id = await bridged(place, network_features=["nat", "bridged"], network_lacks={"bridge-conntrack": why})
    group = await place.group(place.ada)
    refused = await place.put(place.ada, vm_id, [group])
    assert refusal(refused) == (409, "conflict")
    assert "no connection tracking in the bridge family" in refused.json()["error"]["message"]
    assert (await place.ada.get(f"/security-groups/{group['id']}")).json()["machine_count"] == 0
    assert (await place.put(place.ada, vm_id, [])).status_code == 200


async def test_a_bridged_machine_is_in_groups_where_its_host_can_keep_them(place: SecurityGroupHarness) -> None:
    vm_id = await bridged(place, network_features=["nat", "bridged", "bridge-conntrack"])
    assert (await place.put(place.ada, vm_id, [await place.group(place.ada)])).status_code == 200


async def test_a_machine_that_joins_while_a_rule_is_added_is_told_of_the_rule(place: SecurityGroupHarness) -> None:
    vm_id, group = await place.machine(), await place.group(place.ada)
    added = trio.Event()

    async def add() -> None:
        await place.rule(place.ada, group)
        added.set()

    async with trio.open_nursery() as nursery:
        async with place.database.transaction() as tx:
            await set_groups(tx, vm_id, [UUID(group["id"])])
            generation = await tx.fetchval("SELECT net_wanted FROM vms WHERE id = $1", vm_id)
            nursery.start_soon(add)
            with trio.fail_after(60):
                while not added.is_set() and not await place.database.fetchval(
                    "SELECT true FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                ):
                    await trio.sleep(0.005)
    # What a host was told for that generation may lack the rule; so there must be a later one.
    assert await place.wanted(vm_id) > generation


async def test_machines_and_groups_that_change_at_the_same_time_do_not_get_in_each_others_way(
    place: SecurityGroupHarness,
) -> None:
    groups = [await place.group(place.ada, f"g{number}") for number in range(3)]
    machines = [await place.machine(f"m{number}") for number in range(6)]
    refused: list[tuple[int, str]] = []

    async def keep(answer: Any) -> None:
        if answer.status_code >= 400:
            refused.append(refusal(answer))

    async def move(vm_id: UUID, first: int) -> None:
        for turn in range(4):
            await keep(await place.put(place.ada, vm_id, groups if turn % 2 else [groups[(first + turn) % 3]]))

    async def change(group: dict[str, Any], first_port: int) -> None:
        for port in range(first_port, first_port + 4):
            await keep(await place.ada.post(f"/security-groups/{group['id']}/rules", HTTPS | {"port_from": port}))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number, vm_id in enumerate(machines):
                nursery.start_soon(move, vm_id, number)
            for number, group in enumerate(groups):
                nursery.start_soon(change, group, 1000 + 100 * number)
    assert refused == []
    for vm_id in machines:
        told = await firewall(place, vm_id)
        assert told is not None
        assert len(told.rules) == 12


async def test_a_change_of_a_machines_groups_is_audited_on_the_machine(place: SecurityGroupHarness) -> None:
    vm_id = await place.machine()
    group = await place.group(place.ada, "web")
    await place.put(place.ada, vm_id, [group])
    rows = (await place.ada.get(f"/vms/{vm_id}/activity")).json()["items"]
    assert [(row["operation"], row["actor"]) for row in rows] == [("vm.security_groups", "ada@example.org")]
    assert rows[0]["details"] == {"groups": ["web"]}
