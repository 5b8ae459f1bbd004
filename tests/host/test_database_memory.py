"""Which sessions of a database engine are ended when they take too much of the machine's memory."""

from __future__ import annotations

import pytest

from svc_actors.host.databases.memory import SESSION_BYTES, SITE_BYTES, Session, is_of_site, share_of, to_end

MIB = 1 << 20


def session(number: int, user: str, mib: int) -> Session:
    return Session(number, user, mib * MIB)


def test_the_largest_sessions_of_a_site_are_ended_until_it_has_what_it_may() -> None:
    sessions = [
        session(1, "s1_a", 300),
        session(2, "s1_b", 200),
        session(3, "owner_s1_shop", 100),
        session(4, "s11_a", 500),
    ]

    ended = to_end(sessions, 400 * MIB, 10_000 * MIB)

    assert [each.number for each in ended] == [1, 4]


def test_all_together_the_largest_site_gives_first_and_the_others_keep_theirs() -> None:
    greedy = [session(number, "s1_a", 40) for number in range(10)]
    others = [session(100 + number, f"s{number}_a", 30) for number in range(2, 12)]

    ended = to_end([*greedy, *others], 512 * MIB, 400 * MIB)

    assert {each.site for each in ended} == {"s1"}
    assert sum(each.bytes for each in {*greedy, *others} - {*ended}) <= 400 * MIB


def test_what_takes_little_is_left_alone() -> None:
    assert to_end([session(number, f"s{number}_a", 3) for number in range(100)], SITE_BYTES, share_of(2 << 30)) == []


@pytest.mark.parametrize("gib", [1, 2, 4, 24, 256])
def test_both_engines_fit_the_machine(gib: int) -> None:
    share = share_of(gib << 30)

    assert 2 * share <= max(gib << 30, 1 << 30)
    assert share >= SESSION_BYTES * 2
    assert share == share_of((gib << 30) + MIB)  # A balloon starts no engine anew.


@pytest.mark.parametrize(
    ("user", "counted"),
    [("s1_a", True), ("owner_s1_shop", True), ("root", False), ("postgres", False), ("mysql", False), ("s_a", False)],
)
def test_sessions_of_the_engine_itself_are_never_ended(user: str, counted: bool) -> None:
    assert is_of_site(user) is counted
