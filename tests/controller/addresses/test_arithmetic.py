"""Slots: the same arithmetic in Python and in SQL."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from hypothesis import given, settings
from hypothesis import strategies as st

from svc_actors.controller.networking.pool_arithmetic import MOST_SLOT_BITS, Slots, address_text, guest_address
from svc_actors.store import Database


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
