"""Lists of pools are pages: found by what a person would type, sorted, and none told twice or left out."""

from __future__ import annotations

import pytest

from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.support.addresses import make_nics, make_pool, take
from tests.support.machines import refusal, stage


async def test_pools_come_page_by_page(database: Database) -> None:
    async with stage(database) as on:
        made = {await make_pool(database, on.world, f"10.9.{number}.0/29") for number in range(4)}
        pages = [await on.administrator("pool.list", page=number, page_size=2) for number in (1, 2, 3)]
        assert [(page.total, page.pages, len(page.items)) for page in pages] == [(5, 3, 2), (5, 3, 2), (5, 3, 1)]
        assert {pool.id for page in pages for pool in page.items} == made | {on.world.pool_id}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"q": "10.9.1."}, ["10.9.1.0/29"]),
        ({"q": "ATTIC"}, ["10.9.1.0/29"]),
        ({"q": "elsewhere"}, ["10.9.1.0/29", "10.9.0.0/30"]),
        ({"q": "%"}, []),
        ({"sort": "cidr", "q": "elsewhere"}, ["10.9.0.0/30", "10.9.1.0/29"]),
        ({"sort": "free_count", "q": "elsewhere"}, ["10.9.0.0/30", "10.9.1.0/29"]),
        ({"sort": "pressure", "q": "elsewhere"}, ["10.9.1.0/29", "10.9.0.0/30"]),
    ],
)
async def test_a_pool_is_found_and_sorted_by_what_it_is(
    database: Database, asked: dict[str, str], found: list[str]
) -> None:
    async with stage(database) as on:
        network = (await on.administrator("network.create", name="elsewhere")).id
        await on.administrator("network.add_pool", id=network, name="cellar", cidr="10.9.0.0/30")
        await on.administrator("network.add_pool", id=network, name="attic", cidr="10.9.1.0/29")
        assert [pool.cidr for pool in (await on.administrator("pool.list", **asked)).items] == found


async def test_a_network_can_be_asked_for_its_pools_alone(database: Database) -> None:
    async with stage(database) as on:
        await make_pool(database, on.world, "10.9.0.0/29")
        other = (await on.administrator("network.create", name="other")).id
        pool = await on.administrator("network.add_pool", id=other, name="p", cidr="10.9.1.0/29")
        assert [each.id for each in (await on.administrator("pool.list", network=other)).items] == [pool.id]


async def test_the_fullest_pool_is_first_when_asked_by_pressure(database: Database) -> None:
    async with stage(database) as on:
        await make_pool(database, on.world, "10.9.0.0/29")
        full = await make_pool(database, on.world, "10.9.1.0/29")
        for nic in await make_nics(database, on.world, 3):
            await take(database, full, nic)
        assert (await on.administrator("pool.list", sort="-pressure")).items[0].id == full
        assert (await refusal(on.administrator, "pool.list", sort="colour")).code is ErrorCode.INVALID


async def test_reservations_come_page_by_page_in_the_order_of_addresses(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/28")
        for last in (9, 3, 5):
            await on.administrator("pool.reserve", id=pool, ip=f"10.9.0.{last}", note="x")
        pages = [await on.administrator("pool.reservations", id=pool, page=n, page_size=2) for n in (1, 2, 3)]
        assert [(page.total, page.pages) for page in pages] == [(6, 3)] * 3
        listed = [each.ip for page in pages for each in page.items]
        assert listed == [f"10.9.0.{last}" for last in (0, 1, 3, 5, 9, 15)]


@pytest.mark.parametrize("q", ["10.9.0.6", "10.9.0.4", "PRINT", "rack-7"])
async def test_a_reservation_is_found_by_its_kind_its_note_and_any_of_its_addresses(database: Database, q: str) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/28")
        other = await make_pool(database, on.world, "10.9.0.16/28")
        wanted = {"ip": "10.9.0.4", "range_end": "10.9.0.7", "kind": "rack-7", "note": "for the printers"}
        made = await on.administrator("pool.reserve", id=pool, **wanted)
        await on.administrator("pool.reserve", id=pool, ip="10.9.0.9", note="x")
        assert (await on.administrator("pool.reservations", id=pool, q=q)).items == [made]
        assert made not in (await on.administrator("pool.reservations", id=other)).items
