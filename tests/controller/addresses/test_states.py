"""Every row of the specification's table of address states, and every refusal, as an administrator meets them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from svc_actors.controller.networking.addresses import free_removed, releasing_of, start_release
from svc_actors.controller.networking.carried import note_carried
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.support.addresses import held, make_nics, make_pool, take
from tests.support.machines import MachineHarness, refusal, stage

FOURTH, SIXTH = "10.9.0.0/28", "2001:db8::/60"
FAMILIES = pytest.mark.parametrize(
    ("cidr", "asked", "shown"),
    [(FOURTH, "10.9.0.5", "10.9.0.5"), (SIXTH, "2001:db8:0:5::77", "2001:db8:0:5::/64")],
)


async def audited(database: Database, operation: str) -> dict[str, Any]:
    details: dict[str, Any] = await database.fetchval(
        "SELECT details FROM audit WHERE operation = $1 AND outcome = 'ok' ORDER BY id DESC LIMIT 1", operation
    )
    return details


async def releasing(database: Database, on: MachineHarness, cidr: str) -> tuple[Any, str, Any]:
    """A pool, an address of it that a machine's host has not let go of yet, and the machine's NIC."""
    pool = await make_pool(database, on.world, cidr)
    [nic] = await make_nics(database, on.world, 1)
    ip = await take(database, pool, nic)
    assert ip is not None
    async with database.transaction() as tx:
        await start_release(tx, nic.vm_id)
    return pool, ip, nic


@FAMILIES
async def test_free_to_reserved_and_back(database: Database, cidr: str, asked: str, shown: str) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, cidr)
        made = await on.administrator("pool.reserve", id=pool, ip=asked, note="for the router")
        assert (made.ip, made.range_end, made.note, made.arithmetic) == (shown, None, "for the router", False)
        assert await audited(database, "pool.reserve") == {"ip": shown, "range_end": None, "note": "for the router"}
        assert await held(database, pool) == [(shown, "reserved")]
        assert made in (await on.administrator("pool.reservations", id=pool)).items
        listed = (await on.administrator("pool.allocations", id=pool, state="reserved")).items
        assert (shown, "for the router", made.id) in [(each.ip, each.note, each.reservation_id) for each in listed]
        await on.administrator("pool.unreserve", id=pool, rid=made.id)
        assert await held(database, pool) == []
        assert (await refusal(on.administrator, "pool.unreserve", id=pool, rid=made.id)).code is ErrorCode.NOT_FOUND


@FAMILIES
async def test_free_to_blocked_and_back(database: Database, cidr: str, asked: str, shown: str) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, cidr)
        blocked = await on.administrator("pool.block", id=pool, ip=asked, note="abused")
        assert (blocked.ip, blocked.state, blocked.note) == (shown, "blocked", "abused")
        assert await audited(database, "pool.block") == {"ip": shown, "note": "abused"}
        assert (await refusal(on.administrator, "pool.block", id=pool, ip=asked, note="x")).code is ErrorCode.CONFLICT
        await on.administrator("pool.unblock", id=pool, ip=asked)
        assert await held(database, pool) == []
        assert "not blocked" in (await refusal(on.administrator, "pool.unblock", id=pool, ip=asked)).message


@FAMILIES
async def test_an_address_that_a_host_carries_stays_blocked_until_the_host_lets_go(
    database: Database, cidr: str, asked: str, shown: str
) -> None:
    async def carries(*addresses: str) -> None:
        async with database.transaction() as tx:
            await note_carried(tx, on.world.node_id, {uuid4(): addresses}, of_a_pool_all=True)

    async with stage(database) as on:
        pool = await make_pool(database, on.world, cidr)
        await on.administrator("pool.block", id=pool, ip=asked, note="abused")
        await carries(shown)
        await on.administrator("pool.unblock", id=pool, ip=asked)
        [row] = (await on.administrator("pool.allocations", id=pool, state="blocked")).items
        assert row.ip == shown
        assert "carries it" in row.note
        refused = await refusal(on.administrator, "pool.unblock", id=pool, ip=asked)
        assert refused.code is ErrorCode.CONFLICT
        assert "carries it" in refused.message
        await carries()
        assert await held(database, pool) == []


@pytest.mark.parametrize("cidr", [FOURTH, SIXTH])
async def test_releasing_to_free_by_force_is_audited_and_needs_no_node(database: Database, cidr: str) -> None:
    async with stage(database) as on:
        pool, ip, nic = await releasing(database, on, cidr)
        address = ip.split("/")[0]
        with pytest.raises(ValueError, match="note"):
            await on.administrator("pool.force_free", id=pool, ip=address)
        await on.administrator("pool.force_free", id=pool, ip=address, note="the host burnt down")
        assert await held(database, pool) == []
        told = await audited(database, "pool.force_free")
        assert (told["ip"], told["note"], told["vm_id"]) == (ip, "the host burnt down", str(nic.vm_id))


@pytest.mark.parametrize("cidr", ["10.9.0.0/30", "2001:db8::/64"])
async def test_what_a_node_confirms_after_a_force_free_does_not_touch_the_next_holder(
    database: Database, cidr: str
) -> None:
    async with stage(database) as on:
        pool, ip, nic = await releasing(database, on, cidr)
        asked = await releasing_of(database, nic.vm_id)
        assert asked is not None
        await on.administrator("pool.force_free", id=pool, ip=ip.split("/")[0], note="gone")
        [other] = await make_nics(database, on.world, 1)
        assert await take(database, pool, other) == ip
        async with database.transaction() as tx:
            assert await free_removed(tx, nic.vm_id, [ip], through=asked.through) == []
            await start_release(tx, other.vm_id)
            assert await free_removed(tx, nic.vm_id, [ip], through=asked.through) == []
        assert await held(database, pool) == [(ip, "releasing")]


async def test_only_a_released_address_is_freed_by_force(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, FOURTH)
        [nic] = await make_nics(database, on.world, 1)
        ip = await take(database, pool, nic)
        await on.administrator("pool.block", id=pool, ip="10.9.0.9", note="x")
        for address, state in (
            (ip, "allocated"),
            ("10.9.0.9", "blocked"),
            ("10.9.0.1", "reserved"),
            ("10.9.0.8", "free"),
        ):
            refused = await refusal(on.administrator, "pool.force_free", id=pool, ip=address, note="x")
            assert refused.code is ErrorCode.CONFLICT
            assert f"is {state}" in refused.message
        assert await held(database, pool) == [(ip, "allocated"), ("10.9.0.9", "blocked")]


async def test_an_address_that_a_machine_holds_is_neither_blocked_nor_reserved(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, FOURTH)
        [nic] = await make_nics(database, on.world, 1)
        ip = await take(database, pool, nic)
        assert ip == "10.9.0.2"
        for name, values in (
            ("pool.block", {"ip": ip}),
            ("pool.reserve", {"ip": ip}),
            ("pool.reserve", {"ip": "10.9.0.1", "range_end": "10.9.0.9"}),
        ):
            refused = await refusal(on.administrator, name, id=pool, note="x", **values)
            assert refused.code is ErrorCode.CONFLICT
        assert "10.9.0.1 is reserved" in refused.message
        refused = await refusal(on.administrator, "pool.reserve", id=pool, ip=ip, range_end="10.9.0.9", note="x")
        assert refused.details == {"ip": ip, "state": "allocated"}
        assert await held(database, pool) == [(ip, "allocated")]


async def test_a_range_is_reserved_whole_or_not_at_all(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, SIXTH)
        made = await on.administrator(
            "pool.reserve", id=pool, ip="2001:db8:0:4::", range_end="2001:db8:0:7::9", kind="routers", note="x"
        )
        assert (made.ip, made.range_end, made.kind) == ("2001:db8:0:4::/64", "2001:db8:0:7::/64", "routers")
        assert len(await held(database, pool)) == 4
        shown = await on.administrator("pool.show", id=pool)
        assert (shown.total, shown.reserved_count, shown.free_count) == (16, 4, 12)
        refused = await refusal(
            on.administrator, "pool.reserve", id=pool, ip="2001:db8::", range_end="2001:db8:0:4::", note="x"
        )
        assert refused.details == {"ip": "2001:db8:0:4::/64", "state": "reserved"}
        assert len(await held(database, pool)) == 4


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ip": "10.9.1.0"}, "not inside"),
        ({"ip": "2001:db8::"}, "not inside"),
        ({"ip": "10.9.0.9", "range_end": "10.9.0.8"}, "ends before"),
        ({"ip": "10.9.0.9", "range_end": "10.9.0.30"}, "not inside"),
    ],
)
async def test_what_cannot_be_a_reservation_is_refused(
    database: Database, values: dict[str, str], problem: str
) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, FOURTH)
        refused = await refusal(on.administrator, "pool.reserve", id=pool, note="x", **values)
        assert refused.code is ErrorCode.INVALID
        assert problem in refused.message
        assert await held(database, pool) == []


async def test_one_reservation_is_bounded(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "172.16.0.0/12")
        refused = await refusal(
            on.administrator, "pool.reserve", id=pool, ip="172.17.0.0", range_end="172.18.0.0", note="x"
        )
        assert (refused.code, "65,536" in refused.message) == (ErrorCode.INVALID, True)
        await on.administrator("pool.reserve", id=pool, ip="172.17.0.0", range_end="172.17.255.255", note="x")
        shown = await on.administrator("pool.show", id=pool)
        assert shown.reserved_count == 65_536 + 1


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pool.allocations", {}),
        ("pool.reservations", {}),
        ("pool.reserve", {"ip": "10.9.0.5", "note": "x"}),
        ("pool.unreserve", {"rid": str(uuid4())}),
        ("pool.block", {"ip": "10.9.0.5", "note": "x"}),
        ("pool.unblock", {"ip": "10.9.0.5"}),
        ("pool.force_free", {"ip": "10.9.0.5", "note": "x"}),
        ("pool.update", {"name": "x"}),
        ("pool.delete", {}),
        ("pool.show", {}),
    ],
)
async def test_pools_are_for_administrators_and_an_absent_one_is_not_found(
    database: Database, name: str, values: dict[str, str]
) -> None:
    async with stage(database) as on:
        for caller in (on.staff, on.customer):
            assert (await refusal(caller, name, id=uuid4(), **values)).code is ErrorCode.FORBIDDEN
        assert (await refusal(on.administrator, name, id=uuid4(), **values)).code is ErrorCode.NOT_FOUND
