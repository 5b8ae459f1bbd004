"""Who may hold a connection when there are more than there is room for."""

from __future__ import annotations

import resource

import pytest

from svc_actors.admission import (
    Admission,
    ConnectionSlot,
    of_clients,
    of_unauthenticated,
    raise_descriptor_limit,
    source_of,
)


class Door:
    def __init__(self, most: int, of_one: int) -> None:
        self.admission = Admission(most, of_one)
        self.ended: list[str] = []

    def enter(self, address: str, name: str = "") -> ConnectionSlot | None:
        return self.admission.enter(address, lambda: self.ended.append(name or address))


def test_the_longest_idle_of_the_same_address_makes_room() -> None:
    door = Door(most=10, of_one=2)
    door.enter("192.0.2.9", "bystander")
    first = door.enter("192.0.2.1", "first")
    door.enter("192.0.2.1", "second")
    assert first is not None
    first.busy()
    first.idle()

    assert door.enter("192.0.2.1", "third") is not None

    assert door.ended == ["second"]
    assert len(door.admission) == 3


def test_what_is_at_work_makes_room_for_nobody() -> None:
    door = Door(most=2, of_one=2)
    seats = [door.enter("192.0.2.1"), door.enter("192.0.2.1")]
    for seat in seats:
        assert seat is not None
        seat.busy()

    assert door.enter("192.0.2.1") is None
    assert door.enter("192.0.2.2") is None

    assert seats[0] is not None
    seats[0].leave()
    seats[0].leave()
    assert door.enter("192.0.2.2") is not None
    assert door.ended == []


def test_many_addresses_together_have_so_much_room_and_no_more() -> None:
    door = Door(most=3, of_one=2)
    for number in range(10):
        assert door.enter(f"192.0.2.{number}") is not None

    assert len(door.admission) == 3
    assert door.ended == [f"192.0.2.{number}" for number in range(7)]


def test_nothing_is_remembered_of_who_has_left() -> None:
    door = Door(most=10, of_one=2)
    for number in range(100):
        seat = door.enter(f"192.0.2.{number}")
        assert seat is not None
        seat.leave()

    assert (len(door.admission), door.admission._sources, door.admission._idle) == (0, {}, {})


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_subscriber_is_one_source_whatever_address_it_takes(address: str, source: str) -> None:
    assert source_of(address) == source


def test_the_api_leaves_nodes_and_the_database_their_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        few = of_clients()._most + of_unauthenticated()._most
        raised = raise_descriptor_limit()
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert few <= 1024 * 5 // 8
    assert raised == now == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))
