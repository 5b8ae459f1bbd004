"""Migrations: each once, in order, whole; never onto a database that they do not fit."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest
import trio

from svc_actors.store import Database, Migration, MigrationError, known_migrations, migrate


@pytest.fixture
async def steps(database: Database) -> list[Migration]:
    """What the database has, and two more."""
    known = known_migrations()
    number = len(known)
    return [
        *known,
        Migration(number + 1, "basket", "CREATE TABLE basket (id int); INSERT INTO basket VALUES (1);"),
        Migration(number + 2, "apple", "CREATE TABLE apple (id int); INSERT INTO basket VALUES (2);"),
    ]


async def test_a_migrated_database_has_nothing_left_to_apply(database: Database) -> None:
    assert await migrate(database) == []


async def test_only_what_is_missing_is_applied_and_only_once(database: Database, steps: list[Migration]) -> None:
    assert await migrate(database, steps[:-1]) == [steps[-2]]
    assert await migrate(database, steps) == [steps[-1]]
    assert await migrate(database, steps) == []
    assert [row["id"] for row in await database.fetch("SELECT id FROM basket ORDER BY id")] == [1, 2]


async def test_processes_that_migrate_at_once_apply_each_step_once(database: Database, steps: list[Migration]) -> None:
    applied: list[Migration] = []

    async def start() -> None:
        applied.extend(await migrate(database, steps))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(start)
    assert sorted(applied, key=lambda step: step.number) == steps[-2:]


async def test_a_step_that_fails_leaves_nothing_of_itself(database: Database, steps: list[Migration]) -> None:
    broken = Migration(steps[-1].number, "apple", "CREATE TABLE apple (id int); INSERT INTO nowhere VALUES (2);")
    with pytest.raises(asyncpg.UndefinedTableError):
        await migrate(database, [*steps[:-1], broken])
    assert await database.fetchval("SELECT to_regclass('apple')") is None
    assert await database.fetchval("SELECT id FROM basket") == 1
    assert await migrate(database, steps) == [steps[-1]]


async def test_an_applied_step_that_was_edited_is_refused(database: Database, steps: list[Migration]) -> None:
    await migrate(database, steps)
    edited = Migration(steps[-2].number, "basket", steps[-2].sql + "-- a thought")
    with pytest.raises(MigrationError, match=f"{edited} differs"):
        await migrate(database, [*steps[:-2], edited, steps[-1]])


async def test_a_database_newer_than_the_code_is_refused(database: Database, steps: list[Migration]) -> None:
    await migrate(database, steps)
    with pytest.raises(MigrationError, match=f"is at migration {steps[-1]}"):
        await migrate(database, steps[:-1])


@pytest.mark.parametrize("names", [["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["0001_a.sql", "2.sql"]])
def test_files_that_leave_a_gap_or_are_misnamed_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(MigrationError):
        known_migrations(tmp_path)
