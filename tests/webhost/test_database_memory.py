"""Which sessions of a database engine are ended when they take too much of the machine's memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from svc_webhost.databases import memory
from svc_webhost.databases.memory import (
    RESERVE_BYTES,
    SESSION_BYTES,
    SHARE_BYTES,
    SITE_BYTES,
    Session,
    is_of_site,
    most_in_group,
    share_of,
    to_end,
)
from svc_webhost.site_use import group_use

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


def test_pooled_sessions_are_left_alone_while_the_group_of_the_engine_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server of 2 GiB, 150 idle ones that share most of their 3 MiB: more than 384 MiB as a sum."""
    pool = [replace(session(number, f"s{number % 30}_a", 3), idle=True) for number in range(150)]
    busy = session(1000, "s31_a", 200)
    limit = 1024 * MIB

    def with_used(used: int) -> list[Session]:
        monkeypatch.setattr(memory, "group_use", lambda pid: (used, limit))
        return to_end([*pool, busy], SITE_BYTES, most_in_group([*pool, busy], 1))

    assert with_used(limit - RESERVE_BYTES) == []
    assert with_used(limit - RESERVE_BYTES + 100 * MIB) == [busy]
    monkeypatch.setattr(memory, "group_use", lambda pid: None)
    assert most_in_group(pool, 1) == SHARE_BYTES * 3 // 4


def test_idle_sessions_and_those_of_the_panel_are_ended_last() -> None:
    idle = [replace(session(number, "s1_a", 10), idle=True) for number in range(3)]
    owner, busy = session(10, "owner_s2_shop", 500), session(11, "s3_a", 5)

    ended = to_end([*idle, owner, busy], 400 * MIB, 0)

    assert ended[0] == busy
    assert ended[-1] == owner
    assert to_end([owner], 400 * MIB, 10_000 * MIB) == []


def test_what_a_group_has_is_read_from_either_version_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "7").mkdir()
    (tmp_path / "self/mounts").write_text(
        f"cgroup2 {tmp_path}/v2 cgroup2 rw 0 0\ncgroup {tmp_path}/v1 cgroup rw,memory 0 0\n"
    )
    (tmp_path / "7/cgroup").write_text("5:memory:/engine\n0::/engine\n")
    found = []
    for version, most, stat in (
        ("v2", "memory.max", "anon 100\nfile 5000\nshmem 20\n"),
        ("v1", "memory.limit_in_bytes", "cache 5000\ntotal_rss 300\ntotal_shmem 40\n"),
    ):
        folder = tmp_path / version / "engine"
        folder.mkdir(parents=True)
        (folder / "memory.stat").write_text(stat)
        (folder / most).write_text("1000\n")
        found.append(group_use(7, tmp_path))
        (folder / most).write_text("max\n" if version == "v2" else "9223372036854771712\n")

    assert found == [(120, 1000), (340, 1000)]
    assert group_use(7, tmp_path) is None
    assert group_use(8, tmp_path) is None


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
