"""While a release takes the place of the one before, that one runs on the migrated database for a moment.

So each statement of the release before (release_before.json, written by tools/release) has to be understood by the
schema of today as it was by its own. What a statement may not do any more although it is understood (a constraint that
is new) is for the rules of migrations to hold (test_migration_rules.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from asyncpg import PostgresError

from svc_actors.store import PANEL_SCHEMA, Component, Database, Migration, known_migrations, migrate
from tests.conftest import Cluster
from tests.support.machine_records import record_machines
from tests.support.machine_service import make_fleet
from tools.statements import PACKAGES, Statements, statements_of

ROOT = Path(__file__).resolve().parents[2]
BEFORE = json.loads((Path(__file__).parent / "release_before.json").read_text())


FILLED_OTHERWISE = {
    *("list_changes", "machine_stays", "node_capacity", "traffic_months", "vm_texts"),  # by triggers
    *("backup_drill_plan", "panel_installation"),  # by their migrations: one row
    *("pools", "schedules"),  # of columns that a definition gives
}
"""Tables whose rows no recorded statement inserts. What is composed when it runs is not held against migrations."""


@cache
def of_this_tree() -> Statements:
    """Its sources are parsed once a process."""
    return statements_of(ROOT)


def of_services() -> list[list[Migration]]:
    """Each service's, as it is installed: tables of the same name may differ. A statement is of one or of both."""
    return [known_migrations(), known_migrations(PANEL_SCHEMA)]


def of_release_before(migrations: list[Migration]) -> list[Migration]:
    newest = BEFORE["migrations"]
    return [each for each in migrations if each.number <= newest.get(each.component.value, 0)]


@asynccontextmanager
async def database_at(cluster: Cluster, migrations: list[Migration]) -> AsyncIterator[Database]:
    async with cluster.own_database() as url, Database.open(url, size=1) as database:
        await migrate(database, migrations)
        yield database


async def refused(database: Database, statements: Iterable[str]) -> dict[str, str]:
    """Those that the server does not understand, and why."""
    found = {}
    for statement in statements:
        try:
            await database.execute(f"PREPARE held AS {statement}")
        except PostgresError as error:
            found[statement] = str(error)
        else:
            await database.execute("DEALLOCATE held")
    return found


async def broken(cluster: Cluster, migrations: list[Migration]) -> dict[str, str]:
    """What the release before understood by its own schema, and does not by that of these migrations."""
    async with database_at(cluster, of_release_before(migrations)) as before:
        never = await refused(before, BEFORE["statements"])
    async with database_at(cluster, migrations) as after:
        return await refused(after, [each for each in BEFORE["statements"] if each not in never])


async def test_the_release_before_still_works_on_the_schema_of_today(database_cluster: Cluster) -> None:
    for migrations in of_services():
        assert await broken(database_cluster, migrations) == {}


async def test_a_migration_that_takes_away_what_the_release_before_uses_is_found(database_cluster: Cluster) -> None:
    last = known_migrations()[-1]
    sql = "ALTER TABLE nodes RENAME COLUMN preflight_at TO looked_at; ALTER TABLE tasks DROP COLUMN message"
    careless = Migration(last.component, last.number + 1, "careless", sql)

    found = await broken(database_cluster, [*known_migrations(), careless])

    assert any('column "preflight_at"' in why for why in found.values())
    assert any('column "message"' in why for why in found.values())


async def test_the_statements_of_a_tree_are_found_and_the_server_understands_them(database_cluster: Cluster) -> None:
    """Some of what is found only looks like SQL, and some SQL is put together elsewhere: both must stay little."""
    found = of_this_tree()

    wrong = dict.fromkeys(found.known, "")
    tables: set[str] = set()
    for migrations in of_services():
        async with database_at(database_cluster, migrations) as database:
            wrong = await refused(database, wrong)
            rows = await database.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            tables |= {row["tablename"] for row in rows}

    assert len(found.known) > 400
    assert len(wrong) < 0.02 * len(found.known), "\n".join(f"{why}: {each[:200]}" for each, why in wrong.items())
    assert found.partly < 0.15 * len(found.known)
    assert len(BEFORE["statements"]) > 400
    filled = {table for statement in found.known for table in re.findall(r"INSERT INTO (\w+)", statement)}
    assert tables - filled == FILLED_OTHERWISE


@pytest.mark.parametrize(("machines", "before", "after"), [(25, None, None), (30, None, 55), (30, 7, 7)])
async def test_who_has_more_machines_than_the_new_limit_orders_on(
    database_cluster: Cluster, machines: int, before: int | None, after: int | None
) -> None:
    migrations = known_migrations()
    until = next(at for at, each in enumerate(migrations) if each.name == "kept_bounds")
    async with database_at(database_cluster, migrations[:until]) as database:
        fleet = await make_fleet(database)
        await record_machines(database, fleet.node_id, [uuid4() for _ in range(machines)])
        if before is not None:
            await database.execute("INSERT INTO settings (name, value) VALUES ('most_machines', $1)", before)
        await migrate(database, migrations)
        assert await database.fetchval("SELECT value FROM settings WHERE name = 'most_machines'") == after


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The sources, committed, with a changelog that is ready for a release."""
    # Other tests' Pythons replace what they compile meanwhile.
    made = shutil.ignore_patterns("__pycache__", "static", "static.new")
    for package in (*PACKAGES, "tools", "actors/svc_actors/store/migrations"):
        shutil.copytree(ROOT / package, tmp_path / package, dirs_exist_ok=True, ignore=made)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    before = tmp_path / "tests/store/release_before.json"
    before.parent.mkdir(parents=True)
    before.write_text("{}")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n")
    (tmp_path / ".gitignore").write_text("build/\n.venv\n__pycache__\n")
    (tmp_path / "build").mkdir()
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "Tests")
    git(tmp_path, "config", "user.email", "tests@example.test")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_release_writes_down_what_it_asks_of_its_database_and_is_tagged(repository: Path) -> None:
    done = subprocess.run(["tools/release", "0.1.0"], cwd=repository, capture_output=True, text=True, check=False)
    again = subprocess.run(["tools/release", "0.1.0"], cwd=repository, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    written = json.loads((repository / "tests/store/release_before.json").read_text())
    assert written["release"] == "0.1.0"
    assert written["migrations"] == {
        component.value: max(each.number for each in known_migrations((component,))) for component in Component
    }
    releases = json.loads((repository / "actors/svc_actors/store/migrations/releases.json").read_text())
    assert releases["0.1.0"] == written["migrations"]
    assert set(written["statements"]) == of_this_tree().known
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "describe").strip() == "v0.1.0"
    assert again.returncode == 1
    assert "v0.1.0 is tagged already" in again.stderr


@pytest.mark.parametrize(("version", "why"), [("0.9.0", "pyproject.toml has another version"), ("", "say which")])
def test_a_release_that_is_not_ready_is_refused(repository: Path, version: str, why: str) -> None:
    ended = subprocess.run(
        ["tools/release", *([version] if version else [])], cwd=repository, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert why in ended.stderr
    assert git(repository, "tag") == ""
