"""Pools as an administrator makes, changes and removes them: nothing in use is ever stranded."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.networking.addresses import free_removed, start_release
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.support.addresses import Nic, make_nics, make_pool, take
from tests.support.machine_service import make_node
from tests.support.machines import MachineHarness, refusal, stage


async def facts(database: Database, node_id: UUID, **facts: Any) -> None:
    await database.execute("UPDATE nodes SET facts = $2 WHERE id = $1", node_id, facts)


async def in_use(
    database: Database, on: MachineHarness, cidr: str = "10.9.0.0/28", **figures: Any
) -> tuple[UUID, str, Nic]:
    pool = await make_pool(database, on.world, cidr, **figures)
    [nic] = await make_nics(database, on.world, 1)
    ip = await take(database, pool, nic)
    assert ip is not None
    return pool, ip, nic


async def wanted(database: Database, nic: Nic) -> int:
    generation: int = await database.fetchval("SELECT net_wanted FROM vms WHERE id = $1", nic.vm_id)
    return generation


async def test_an_ipv6_pool_counts_sub_prefixes(database: Database) -> None:
    async with stage(database) as on:
        pool = await on.administrator("network.add_pool", id=on.world.network_id, name="six", cidr="2001:db8::/48")
        assert (pool.family, pool.prefix_len, pool.total, pool.free_count) == (6, 64, 65_536, 65_536)
        assert (pool.topology, pool.gateway, pool.guest_prefix_len) == ("routed", "fe80::1", 64)
        assert (pool.range_start, pool.range_end) == ("2001:db8::", "2001:db8:0:ffff::")
        [nic] = await make_nics(database, on.world, 1)
        assert await take(database, pool.id, nic) == "2001:db8::/64"
        shown = await on.administrator("pool.show", id=pool.id)
        assert (shown.allocated_count, shown.free_count) == (1, 65_535)
        [row] = (await on.administrator("pool.allocations", id=pool.id)).items
        assert (row.ip, row.state, row.primary) == ("2001:db8::/64", "allocated", True)


async def test_pool_names_are_given_once_in_a_network(database: Database) -> None:
    async with stage(database) as on:
        network = on.world.network_id
        one = await on.administrator("network.add_pool", id=network, name="one", cidr="192.0.2.0/26")
        two = await on.administrator("network.add_pool", id=network, name="two", cidr="192.0.2.64/26")
        elsewhere = await on.administrator("network.create", name="elsewhere")

        again = await refusal(on.administrator, "network.add_pool", id=network, name="one", cidr="192.0.2.128/26")
        renamed = await refusal(on.administrator, "pool.update", id=two.id, name="one")
        other = await on.administrator("network.add_pool", id=elsewhere.id, name="one", cidr="192.0.2.128/26")

        assert (again.code, renamed.code, other.name) == (ErrorCode.CONFLICT, ErrorCode.CONFLICT, "one")
        assert (await on.administrator("pool.update", id=one.id, name="one", enabled=False)).name == "one"


async def test_a_bridged_pool_has_a_vlan_and_the_guests_own_subnet(database: Database) -> None:
    async with stage(database) as on:
        pool = await on.administrator(
            "network.add_pool",
            id=on.world.network_id,
            name="office",
            cidr="192.0.2.0/24",
            topology="bridged",
            gateway_mode="subnet",
            gateway="192.0.2.254",
            range_start="192.0.2.10",
            range_end="192.0.2.99",
            nameservers=["192.0.2.1"],
            vlan=12,
        )
        assert (pool.vlan, pool.guest_prefix_len, pool.total, pool.prefix_len) == (12, 24, 90, None)


@pytest.mark.parametrize(
    ("figures", "field"),
    [
        ({"cidr": "2001:db8::/48", "topology": "nat"}, "topology"),
        ({"cidr": "2001:db8::/48", "prefix_len": 47}, "prefix_len"),
        ({"cidr": "2001:db8::/48", "prefix_len": 111}, "prefix_len"),
        ({"cidr": "2001:db8::/48", "gateway": "2001:db9::1"}, "gateway"),
        ({"cidr": "2001:db8::/48", "range_start": "10.0.0.1"}, "range_start"),
        ({"cidr": "10.9.0.0/24", "prefix_len": 28}, "prefix_len"),
        ({"cidr": "10.9.0.0/24", "vlan": 7}, "vlan"),
        ({"cidr": "10.9.0.0/24", "gateway_mode": "subnet", "guest_prefix_len": 25}, "guest_prefix_len"),
        ({"cidr": "10.9.0.0/24", "gateway_mode": "subnet", "gateway": "10.9.0.255"}, "gateway"),
        (
            {"cidr": "10.9.0.0/16", "gateway_mode": "subnet", "guest_prefix_len": 24}
            | {"range_start": "10.9.0.1", "range_end": "10.9.0.255"},
            "range_end",
        ),
        ({"cidr": "10.9.0.0/24", "nameservers": ["127.0.0.1"]}, "nameservers"),
        ({"cidr": "127.0.0.0/24"}, "cidr"),
        ({"cidr": "fe80::/64"}, "cidr"),
        ({"cidr": "224.1.0.0/24"}, "cidr"),
        ({"cidr": "10.9.0.0/24", "node_ids": [str(uuid4())]}, "node_ids"),
    ],
)
async def test_a_pool_that_contradicts_itself_is_refused(
    database: Database, figures: dict[str, Any], field: str
) -> None:
    async with stage(database) as on:
        refused = await refusal(on.administrator, "network.add_pool", id=on.world.network_id, name="p", **figures)
        assert refused.code is ErrorCode.INVALID
        assert refused.message.startswith(f"{field}:")
        assert (await on.administrator("pool.list")).total == 1


@pytest.mark.parametrize(
    ("figures", "feature"),
    [
        ({"cidr": "10.9.0.0/24", "topology": "bridged"}, "bridged"),
        ({"cidr": "10.9.0.0/24", "topology": "bridged", "vlan": 7}, "vlan"),
        ({"cidr": "2001:db8::/48"}, "ipv6"),
        ({"cidr": "10.9.0.0/24", "topology": "routed"}, "routed"),
    ],
)
async def test_a_pool_that_a_node_it_serves_cannot_carry_is_refused_with_the_nodes_reason(
    database: Database, figures: dict[str, Any], feature: str
) -> None:
    async with stage(database) as on:
        beta = await make_node(database, on.world.location_id, "beta")
        await facts(database, beta, network_lacks={feature: "the kernel has no such thing"})
        refused = await refusal(on.administrator, "network.add_pool", id=on.world.network_id, name="p", **figures)
        assert refused.code is ErrorCode.CONFLICT
        assert "beta" in refused.message
        assert "the kernel has no such thing" in refused.message
        pool = await on.administrator(
            "network.add_pool", id=on.world.network_id, name="p", node_ids=[str(on.world.node_id)], **figures
        )
        refused = await refusal(on.administrator, "pool.update", id=pool.id, node_ids=[])
        assert "the kernel has no such thing" in refused.message


@pytest.mark.parametrize("road", ["network_lacks", "host_addresses"])
async def test_a_gateway_that_takes_a_nodes_road_is_refused(database: Database, road: str) -> None:
    """It would be an address of each host that carries the pool, and the host would no longer reach its owner."""
    async with stage(database) as on:
        network = on.world.network_id
        beta = await make_node(database, on.world.location_id, "beta")
        said: dict[str, Any] = {
            "network_lacks": {"gateway:10.9.0.1": "It is the address of this node's controller."},
            "host_addresses": ["10.9.0.1/24"],
        }
        await facts(database, beta, **{road: said[road]})
        refused = await refusal(on.administrator, "network.add_pool", id=network, name="p", cidr="10.9.0.0/24")
        assert refused.code is ErrorCode.CONFLICT
        assert "beta" in refused.message
        pool = await on.administrator(
            "network.add_pool", id=network, name="p", cidr="10.9.0.0/24", gateway="10.9.0.254"
        )
        moved = await refusal(on.administrator, "pool.update", id=pool.id, gateway="10.9.0.1")
        assert moved.code is ErrorCode.CONFLICT
        assert (await on.administrator("pool.show", id=pool.id)).gateway == "10.9.0.254"
        # At a bridge the gateway is another device's, and no host answers for it.
        await on.administrator("pool.update", id=pool.id, topology="bridged", gateway="10.9.0.1")


async def test_ipv6_and_an_mtu_below_its_least_are_refused_both_ways_round(database: Database) -> None:
    async with stage(database) as on:
        small = await on.administrator("network.create", name="small", mtu=1279)
        refused = await refusal(on.administrator, "network.add_pool", id=small.id, name="six", cidr="2001:db8::/48")
        assert (refused.code, "1280" in refused.message) == (ErrorCode.CONFLICT, True)
        await on.administrator("network.add_pool", id=small.id, name="four", cidr="10.9.0.0/24")
        await on.administrator("network.update", id=small.id, mtu=1280)
        await on.administrator("network.add_pool", id=small.id, name="six", cidr="2001:db8::/48")
        refused = await refusal(on.administrator, "network.update", id=small.id, mtu=1279)
        assert refused.code is ErrorCode.CONFLICT
        shown = {network.id: network.mtu for network in await on.administrator("network.list")}
        assert shown[small.id] == 1280
        made = await refusal(
            on.administrator, "network.create", name="both", mtu=576, pool={"name": "six", "cidr": "2001:db9::/48"}
        )
        assert made.code is ErrorCode.CONFLICT


@pytest.mark.parametrize(
    "change",
    [
        {"range_start": "10.9.0.3"},
        {"range_end": "10.9.0.2", "range_start": "10.9.0.1", "gateway": "10.9.0.2"},
        {"gateway": "10.9.0.2"},
    ],
)
@pytest.mark.parametrize("released", [False, True])
async def test_an_edit_that_strands_an_address_names_it_and_changes_nothing(
    database: Database, change: dict[str, Any], released: bool
) -> None:
    async with stage(database) as on:
        pool, ip, nic = await in_use(database, on)
        if released:
            async with database.transaction() as tx:
                await start_release(tx, nic.vm_id)
        before = await on.administrator("pool.show", id=pool)
        refused = await refusal(on.administrator, "pool.update", id=pool, name="other", **change)
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"ip": ip})
        assert ip in refused.message
        assert await on.administrator("pool.show", id=pool) == before
        async with database.transaction() as tx:
            await start_release(tx, nic.vm_id)
            await free_removed(tx, nic.vm_id, [ip])
        assert (await on.administrator("pool.update", id=pool, name="other", **change)).name == "other"


async def test_a_pool_leaves_neither_a_node_nor_a_location_where_its_machines_are(database: Database) -> None:
    async with stage(database) as on:
        pool, ip, _ = await in_use(database, on)
        beta = await make_node(database, on.world.location_id, "beta")
        elsewhere = (await on.administrator("location.create", name="elsewhere")).id
        for change in ({"node_ids": [beta]}, {"location_id": elsewhere}):
            refused = await refusal(on.administrator, "pool.update", id=pool, **change)
            assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"ip": ip})
            assert "alpha" in refused.message
        shown = await on.administrator("pool.update", id=pool, node_ids=[beta, on.world.node_id])
        assert shown.node_ids == [beta, on.world.node_id]
        assert (await on.administrator("pool.update", id=pool, node_ids=[])).node_ids == []
        assert (
            await refusal(on.administrator, "pool.update", id=pool, location_id=uuid4())
        ).code is ErrorCode.NOT_FOUND


async def test_a_topology_that_a_machines_other_address_forbids_is_refused(database: Database) -> None:
    async with stage(database) as on:
        pool, ip, nic = await in_use(database, on)
        assert await take(database, on.world.pool_id, nic, primary=False) is not None
        refused = await refusal(on.administrator, "pool.update", id=pool, topology="bridged")
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"ip": ip})
        assert (await on.administrator("pool.update", id=pool, topology="routed")).topology == "routed"


@pytest.mark.parametrize(
    ("change", "carried"),
    [
        ({"gateway": "10.9.0.9"}, True),
        ({"gateway_mode": "subnet"}, True),
        ({"guest_prefix_len": 30}, True),
        ({"topology": "routed"}, True),
        ({"topology": "bridged", "vlan": 9}, True),
        ({"nameservers": ["192.0.2.1"]}, True),
        ({"name": "other"}, False),
        ({"range_end": "10.9.0.9"}, False),
        ({"enabled": False}, False),
        ({"gateway": "10.9.0.1", "nameservers": [], "vlan": None}, False),
    ],
)
async def test_hosts_are_told_of_what_they_carry_and_of_nothing_else(
    database: Database, change: dict[str, Any], carried: bool
) -> None:
    async with stage(database) as on:
        pool, _, nic = await in_use(database, on)
        [stranger] = await make_nics(database, on.world, 1)
        before = await wanted(database, nic), await wanted(database, stranger)
        shown = await on.administrator("pool.update", id=pool, **change)
        for name, value in change.items():
            assert getattr(shown, name) == value
        assert await wanted(database, nic) == before[0] + carried
        assert await wanted(database, stranger) == before[1]


async def test_the_guests_prefix_follows_the_gateways_mode(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/28")
        assert (await on.administrator("pool.update", id=pool, gateway_mode="subnet")).guest_prefix_len == 28
        assert (await on.administrator("pool.update", id=pool, gateway_mode="onlink")).guest_prefix_len == 32


async def test_a_vlan_is_taken_away_by_null(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/28", topology="bridged", vlan=7)
        assert (await on.administrator("pool.update", id=pool, name="x")).vlan == 7
        assert (await on.administrator("pool.update", id=pool, vlan=None)).vlan is None


@pytest.mark.parametrize("field", ["cidr", "family", "prefix_len"])
async def test_what_a_pool_is_never_changes(database: Database, field: str) -> None:
    async with stage(database) as on:
        with pytest.raises(ValueError, match=field):
            await on.administrator("pool.update", id=on.world.pool_id, **{field: 6})


async def test_the_gateways_reservation_moves_with_it(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/29")
        await on.administrator("pool.update", id=pool, gateway="10.9.0.4")
        kept = [(each.ip, each.kind) for each in (await on.administrator("pool.reservations", id=pool)).items]
        assert kept == [("10.9.0.0", "network"), ("10.9.0.4", "gateway"), ("10.9.0.7", "broadcast")]
        nics = await make_nics(database, on.world, 6)
        got = {await take(database, pool, nic) for nic in nics}
        assert got == {"10.9.0.1", "10.9.0.2", "10.9.0.3", "10.9.0.5", "10.9.0.6", None}


async def test_a_changed_mtu_is_told_to_every_machine_of_the_network(database: Database) -> None:
    async with stage(database) as on:
        [nic] = await make_nics(database, on.world, 1)
        before = await wanted(database, nic)
        await on.administrator("network.update", id=on.world.network_id, mtu=1500)
        assert await wanted(database, nic) == before
        await on.administrator("network.update", id=on.world.network_id, mtu=9000)
        assert await wanted(database, nic) == before + 1


async def test_a_pool_goes_only_when_nothing_of_it_is_held(database: Database) -> None:
    async with stage(database) as on:
        pool, ip, nic = await in_use(database, on)

        async def refused() -> dict[str, object] | None:
            error = await refusal(on.administrator, "pool.delete", id=pool)
            assert error.code is ErrorCode.CONFLICT
            return error.details

        assert await refused() == {"allocated": 1}
        async with database.transaction() as tx:
            await start_release(tx, nic.vm_id)
        assert await refused() == {"releasing": 1}
        await on.administrator("pool.force_free", id=pool, ip=ip, note="x")
        await on.administrator("pool.block", id=pool, ip=ip, note="x")
        assert await refused() == {"blocked": 1}
        await on.administrator("pool.unblock", id=pool, ip=ip)
        made = await on.administrator("pool.reserve", id=pool, ip=ip, note="x")
        assert await refused() == {"reserved": 1}
        await on.administrator("pool.unreserve", id=pool, rid=made.id)
        await on.administrator("pool.delete", id=pool)
        assert [each.id for each in (await on.administrator("pool.list")).items] == [on.world.pool_id]


async def test_a_pool_is_not_bridged_under_a_machine_that_its_host_could_not_filter_there(database: Database) -> None:
    async with stage(database) as on:
        pool, _, nic = await in_use(database, on, topology="routed")
        await facts(database, on.world.node_id, network_features=["routed", "bridged"])
        group = await database.fetchval("INSERT INTO security_groups (name) VALUES ('web') RETURNING id")
        await database.execute("INSERT INTO security_group_machines VALUES ($1, $2)", nic.vm_id, group)
        refused = await refusal(on.administrator, "pool.update", id=pool, topology="bridged")
        assert (refused.code, str(nic.vm_id) in refused.message) == (ErrorCode.CONFLICT, True)  # Its name is its id.
        assert (await on.administrator("pool.show", id=pool)).topology == "routed"
        await database.execute("DELETE FROM security_group_machines")
        assert (await on.administrator("pool.update", id=pool, topology="bridged")).topology == "bridged"


async def test_the_counts_of_a_pool_add_up_to_its_range(database: Database) -> None:
    async with stage(database) as on:
        pool = await on.administrator(
            "network.add_pool",
            id=on.world.network_id,
            name="small",
            cidr="192.0.2.0/24",
            range_start="192.0.2.8",
            range_end="192.0.2.13",
        )
        await on.administrator("pool.block", id=pool.id, ip="192.0.2.9", note="spam")
        await on.administrator("pool.block", id=pool.id, ip="192.0.2.200", note="outside of the range")

        shown = await on.administrator("pool.show", id=pool.id)

        held = shown.reserved_count + shown.allocated_count + shown.releasing_count + shown.blocked_count
        assert (shown.total, shown.blocked_count, shown.reserved_count, shown.free_count) == (6, 1, 0, 5)
        assert held + shown.free_count == shown.total


@pytest.mark.parametrize(
    ("figures", "field"), [({"gateway_mode": "subnet"}, "gateway_mode"), ({"guest_prefix_len": 24}, "guest_prefix_len")]
)
async def test_a_routed_ipv4_guest_has_a_single_address(
    database: Database, figures: dict[str, Any], field: str
) -> None:
    async with stage(database) as on:
        given = {"id": on.world.network_id, "cidr": "192.0.2.0/24", "topology": "routed"}

        refused = await refusal(on.administrator, "network.add_pool", name="r", **given, **figures)
        made = await on.administrator("network.add_pool", name="r", **given, guest_prefix_len=32)

        assert refused.code is ErrorCode.INVALID
        assert refused.message.startswith(f"{field}: ")
        assert (made.guest_prefix_len, made.gateway_mode) == (32, "onlink")
