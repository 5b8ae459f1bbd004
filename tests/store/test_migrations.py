"""Migrations: each once, in order, whole; never onto a database that they do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
import trio

from svc_actors.store import Component, Database, Migration, MigrationError, known_migrations, migrate
from svc_actors.store.migrate import release_before
from tests.conftest import Cluster
from tests.support.schema import schema_of


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """For the owner, who migrates."""
    async with Database.open(database_url.replace("//svc@", "//svc_owner@")) as owner:
        yield owner


@pytest.fixture
async def steps(database: Database) -> list[Migration]:
    """What the database has, and two more."""
    known = known_migrations()
    number = known[-1].number
    return [
        *known,
        _step(number + 1, "basket", "CREATE TABLE basket (id int); INSERT INTO basket VALUES (1);"),
        _step(number + 2, "apple", "CREATE TABLE apple (id int); INSERT INTO basket VALUES (2);"),
    ]


def _step(number: int, name: str, sql: str, component: Component = Component.CONTROLLER) -> Migration:
    return Migration(component, number, name, sql)


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
    broken = _step(steps[-1].number, "apple", "CREATE TABLE apple (id int); INSERT INTO nowhere VALUES (2);")
    with pytest.raises(asyncpg.UndefinedTableError):
        await migrate(database, [*steps[:-1], broken])
    assert await database.fetchval("SELECT to_regclass('apple')") is None
    assert await database.fetchval("SELECT id FROM basket") == 1
    assert await migrate(database, steps) == [steps[-1]]


async def test_an_applied_step_that_was_edited_is_refused(database: Database, steps: list[Migration]) -> None:
    await migrate(database, steps)
    edited = _step(steps[-2].number, "basket", steps[-2].sql + "-- a thought")
    with pytest.raises(MigrationError, match=f"{edited} differs"):
        await migrate(database, [*steps[:-2], edited, steps[-1]])


async def test_a_database_newer_than_the_code_is_refused(database: Database, steps: list[Migration]) -> None:
    await migrate(database, steps)
    with pytest.raises(MigrationError, match=f"is at migration {steps[-1]}"):
        await migrate(database, steps[:-1])


async def test_who_has_gone_back_to_the_release_before_works_on_what_the_newer_one_migrated(
    database: Database, steps: list[Migration]
) -> None:
    await migrate(database, steps)

    assert await migrate(database, steps[:-1], returned=True) == []
    with pytest.raises(MigrationError, match=f"is at migration {steps[-1]}"):
        await migrate(database, steps[:-1])


async def test_who_has_gone_back_further_than_the_release_before_is_refused(
    database: Database, steps: list[Migration]
) -> None:
    before = release_before()["controller"]
    shared = [each for each in steps if each.component is Component.SHARED]
    further = [*shared, _step(before - 1, "newest", "SELECT 1")]
    await migrate(database, steps)

    with pytest.raises(MigrationError, match=f"knows only {before - 1} of controller"):
        await migrate(database, further, returned=True)


def test_the_release_before_is_the_newest_that_knows_other_migrations(tmp_path: Path) -> None:
    for component in Component:
        (tmp_path / component.value).mkdir()
    (tmp_path / "panel" / "0001_a.sql").write_text("SELECT 1")
    first, second = ({"controller": 0, "panel": count, "shared": 0} for count in (0, 1))
    (tmp_path / "releases.json").write_text(json.dumps({"0.1.0": first, "0.2.0": second}))

    of_the_second_release = release_before(tmp_path)
    (tmp_path / "panel" / "0002_b.sql").write_text("SELECT 1")
    after_it = release_before(tmp_path)

    assert (of_the_second_release, after_it) == (first, second)


async def test_a_component_is_extended_without_touching_the_numbers_of_another(
    database: Database, steps: list[Migration]
) -> None:
    await migrate(database, steps)
    shared = _step(
        known_migrations([Component.SHARED])[-1].number + 1,
        "later",
        "CREATE TABLE later (id int)",
        Component.SHARED,
    )

    applied = await migrate(database, [*steps, shared])

    assert applied == [shared]


IN_STEPS = [_step(at, name, f"CREATE TABLE {name} (id int)", Component.PANEL) for at, name in enumerate("abc", 1)]
"""Of a component that the database has nothing of."""
AT_ONCE = _step(3, "release_0_1_0", ";".join(step.sql for step in IN_STEPS), Component.PANEL)
AFTER = _step(4, "d", "CREATE TABLE d (id int)", Component.PANEL)


async def test_a_new_database_gets_the_schema_of_a_release_at_once(database: Database) -> None:
    assert await migrate(database, [AT_ONCE, AFTER]) == [AT_ONCE, AFTER]
    assert await migrate(database, [AT_ONCE, AFTER]) == []


async def test_a_database_that_a_release_made_in_steps_goes_on_after_them(database: Database) -> None:
    await migrate(database, IN_STEPS)

    assert await migrate(database, [AT_ONCE, AFTER]) == [AFTER]
    assert await migrate(database, [AT_ONCE, AFTER]) == []


@pytest.mark.parametrize("steps", [IN_STEPS[:1], IN_STEPS[:2], IN_STEPS[1:]])
async def test_a_database_with_some_steps_of_a_release_is_refused_and_left_as_it_is(
    database: Database, steps: list[Migration]
) -> None:
    await migrate(database, steps)
    before = await schema_of(database)

    with pytest.raises(MigrationError, match=rf"has {len(steps)} of the 3 migrations of panel .* install 0\.1\.0"):
        await migrate(database, [AT_ONCE, AFTER])

    assert await schema_of(database) == before


async def test_the_schema_of_a_release_that_was_edited_is_refused(database: Database) -> None:
    await migrate(database, [AT_ONCE])
    edited = replace(AT_ONCE, sql=AT_ONCE.sql + "-- a thought")
    with pytest.raises(MigrationError, match=f"{edited} differs"):
        await migrate(database, [edited, AFTER])


@pytest.mark.parametrize(
    "names",
    [
        *(["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["0001_a.sql", "2.sql"]),
        *(["0003_a.sql"], ["0003_release_0_1_0.sql", "0005_b.sql"]),
    ],
)
def test_files_that_leave_a_gap_or_are_misnamed_are_refused(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "shared").mkdir()
    for name in names:
        (tmp_path / "shared" / name).write_text("SELECT 1")
    with pytest.raises(MigrationError):
        known_migrations([Component.SHARED], tmp_path)


async def test_a_database_from_before_the_first_release_is_refused_and_left_as_it_is(database_cluster: Cluster) -> None:
    async with database_cluster.own_database() as url, Database.open(url) as database:
        await database.execute("CREATE TABLE schema_migration (number integer PRIMARY KEY, name text, checksum text)")
        before = await schema_of(database)

        with pytest.raises(MigrationError, match=r"before 0\.1\.0"):
            await migrate(database)

        assert await schema_of(database) == before
