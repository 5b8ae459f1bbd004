"""How often the files that describe the tables of sites are read, to find those that are kept in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trio.testing import MockClock

from svc_webhost.databases import DatabaseName
from svc_webhost.databases.memory import SHARE_BYTES
from svc_webhost.folders import HostFolders
from svc_webhost.mariadb import MariaDb, memory_tables
from svc_webhost.mariadb import server as mariadb_server
from tests.support.panel import RecordedLauncher

IN_MEMORY = b"\xfe\x01\x0a\x06" + b"\0" * 96
SHOP, BLOG = DatabaseName("s1_shop"), DatabaseName("s2_blog")


def table(data: Path, database: str, name: str, changed: int) -> None:
    folder = data / database
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.frm").write_bytes(IN_MEMORY)
    os.utime(folder, (changed, changed))


def test_only_folders_that_have_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = memory_tables._tables_of

    def counted(file: Path) -> int:
        opened.append(file.name)
        return real(file)

    monkeypatch.setattr(memory_tables, "_tables_of", counted)
    known: memory_tables.Known = {}
    table(tmp_path, SHOP, "one", 1000)
    table(tmp_path, BLOG, "two", 1000)

    first = memory_tables.databases_with(tmp_path, known)
    again = memory_tables.databases_with(tmp_path, known)
    opened_then = sorted(opened)
    table(tmp_path, BLOG, "three", 2000)
    changed = memory_tables.databases_with(tmp_path, known)

    assert first == again == {SHOP: 1, BLOG: 1}
    assert opened_then == ["one.frm", "two.frm"]
    assert changed == {SHOP: 1, BLOG: 2}
    assert sorted(opened[2:]) == ["three.frm", "two.frm"]


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    """Within one tick of the file system's clock the folder has the same time."""
    known: memory_tables.Known = {}
    now = 4_000_000_000
    table(tmp_path, SHOP, "one", now)
    memory_tables.databases_with(tmp_path, known)
    table(tmp_path, SHOP, "two", now)

    assert memory_tables.databases_with(tmp_path, known) == {SHOP: 2}


async def test_tables_are_looked_at_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    looks = 0
    server = MariaDb(HostFolders(tmp_path), RecordedLauncher())

    async def look() -> None:
        nonlocal looks
        looks += 1

    async def sessions() -> list[tuple[int, str, int, bool]]:
        return []

    monkeypatch.setattr(server, "empty_memory_tables", look)
    monkeypatch.setattr(server, "_sessions", sessions)
    monkeypatch.setattr(mariadb_server, "resident", lambda _: (1, SHARE_BYTES))
    monkeypatch.setattr(mariadb_server, "temporary_files", lambda *_: ({}, 0))

    for _ in range(60):
        await server.end_greedy()
        autojump_clock.jump(1.0)
    within = looks
    await server.end_greedy()

    assert (within, looks) == (1, 2)
