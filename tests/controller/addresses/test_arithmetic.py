"""Slots: the same arithmetic in Python and in SQL, and what migration 0007 makes of the pools there were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_actors.controller.networking.pool_arithmetic import MOST_SLOT_BITS, Slots, address_text, guest_address
from svc_actors.store import Database, known_migrations, migrate
from tests.conftest import Cluster


@st.composite
def pools(draw: st.DrawFn) -> Slots:
    if draw(st.booleans()):
        length = draw(st.integers(8, 30))
        return Slots(IPv4Network((draw(st.integers(0, 2**32 - 1)) >> (32 - length) << (32 - length), length)), 32)
    length = draw(st.integers(8, 128))
    return Slots(
        IPv6Network((draw(st.integers(2**120, 2**128 - 1)) >> (128 - length) << (128 - length), length)),
        draw(st.integers(length, min(128, length + MOST_SLOT_BITS))),
    )


@st.composite
def places(draw: st.DrawFn) -> tuple[Slots, int]:
    pool = draw(pools())
    return pool, draw(st.integers(0, pool.count - 1))


@settings(deadline=None)
@given(place=places())
def test_a_slot_is_found_again_by_any_address_in_it(place: tuple[Slots, int]) -> None:
    pool, slot = place
    network = pool.network_at(slot)
    assert network.prefixlen == pool.prefix_len
    assert {pool.slot_of(ip) for ip in (network[0], network[-1], guest_address(network))} == {slot}
    assert network.subnet_of(pool.cidr)  # type: ignore[arg-type]


def test_an_address_outside_the_pool_has_no_slot() -> None:
    pool = Slots(IPv4Network("10.1.0.0/24"), 32)
    assert [pool.slot_of(ip) for ip in (IPv4Address("10.1.1.0"), IPv6Address("::a01:5"))] == [None, None]


async def test_the_database_counts_as_we_do(database: Database) -> None:
    drawn: list[tuple[Slots, int]] = [
        (Slots(IPv6Network("2000::/3"), 65), 2**62 - 1),
        (Slots(IPv6Network("2001:db8::/66"), 128), 2**62 - 1),
        (Slots(IPv6Network("2001:db8::/64"), 64), 0),
    ]

    @settings(deadline=None)
    @given(place=places())
    def draw(place: tuple[Slots, int]) -> None:
        drawn.append(place)

    draw()
    for pool, slot in drawn:
        text = await database.fetchval(
            "SELECT address_text(pool_address($1, $2, $3))", pool.cidr, pool.prefix_len, slot
        )
        assert text == address_text(pool.network_at(slot)) == pool.text_at(slot)


@pytest.fixture
async def blank(database_cluster: Cluster) -> AsyncIterator[Database]:
    """A database without a table."""
    async with database_cluster.own_database() as url, Database.open(url) as database:
        yield database


async def test_the_pools_and_addresses_there_were_are_carried_over(blank: Database) -> None:
    migrations = known_migrations()
    before_slots = [step.name for step in migrations].index("addresses")
    await migrate(blank, migrations[:before_slots])
    location = await blank.fetchval("INSERT INTO locations (name) VALUES ('default') RETURNING id")
    network = await blank.fetchval("INSERT INTO networks (name) VALUES ('nat') RETURNING id")
    project = await blank.fetchval("INSERT INTO projects (name) VALUES ('p') RETURNING id")
    image = await blank.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
           VALUES ('i', 'i', 'linux', 'd', '1', 'u', 'qcow2', 'file', true) RETURNING id"""
    )
    vm = await blank.fetchval(
        """INSERT INTO vms (name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode)
           VALUES ('m', 'm', $1, $2, 1, 64, 1, 'running', 'user_sudo') RETURNING id""",
        project,
        image,
    )
    pool = await blank.fetchval(
        """INSERT INTO pools (network_id, location_id, name, family, cidr, range_start, range_end, gateway,
                              guest_prefix_len, topology, next_ip)
           VALUES ($1, $2, 'p', 4, '10.77.0.0/16', '10.77.0.1', '10.77.255.254', '10.77.0.1', 32, 'nat', '10.77.1.0')
           RETURNING id""",
        network,
        location,
    )
    for ip, note in (("10.77.0.0", "network"), ("10.77.0.1", "gateway"), ("10.77.255.255", "broadcast")):
        await blank.execute(
            "INSERT INTO allocations (pool_id, ip, state, arithmetic, note) VALUES ($1, $2, 'reserved', true, $3)",
            pool,
            IPv4Address(ip),
            note,
        )
    for ip, state in (("10.77.0.2", "allocated"), ("10.77.0.255", "releasing")):
        await blank.execute(
            "INSERT INTO allocations (pool_id, ip, state, vm_id, is_primary) VALUES ($1, $2, $3, $4, $5)",
            pool,
            IPv4Address(ip),
            state,
            vm,
            state == "allocated",
        )
    await migrate(blank, migrations)
    row = await blank.fetchrow("SELECT * FROM pools")
    assert row is not None
    assert (row["first_slot"], row["last_slot"], row["next_slot"], row["prefix_len"]) == (1, 65_534, 256, 32)
    kept = await blank.fetch(
        """SELECT address_text(ip) AS ip, slot, state, kind FROM allocations
           LEFT JOIN reservations ON reservations.id = reservation_id ORDER BY slot"""
    )
    assert [tuple(each) for each in kept] == [
        ("10.77.0.0", 0, "reserved", "network"),
        ("10.77.0.1", 1, "reserved", "gateway"),
        ("10.77.0.2", 2, "allocated", None),
        ("10.77.0.255", 255, "releasing", None),
        ("10.77.255.255", 65_535, "reserved", "broadcast"),
    ]
