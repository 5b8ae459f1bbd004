"""An import that replaces: nothing is removed before the dump was looked at, and what was there comes back."""

from __future__ import annotations

import ast
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

import svc_actors
from svc_actors.panel.backups import Places
from svc_actors.panel.databases import transfers
from svc_actors.panel.jobs import Job, NewJob, ProgramFailed, enqueue
from svc_actors.store import Database, Transaction
from svc_common.errors import unavailable
from svc_webhost.databases import DatabaseError, EngineKind
from tests.panel.databases.world import World, world_of
from tests.webhost.confined.test_sql_look import CUT, NONE

BEFORE = "CREATE TABLE orders (id int);"
WRONG = {
    "nothing": b"",
    "comments": b"-- only a comment\n",
    "a zip": b"PK\x03\x04rest",
    "HTML": b"<html>404</html>",
    "UTF-16": b"\xff\xfeC\x00",
    "a gz that was cut": gzip.compress(b"CREATE TABLE a (id int);" * 50)[:40],
    "a dump that was cut": b"-- MariaDB dump 10.19  Distrib 10.11.6-MariaDB\nCREATE TABLE a (id int);\n",
}


async def filled(world: World) -> dict[str, Any]:
    database: dict[str, Any] = (await world.create(user="ada"))["database"]
    world.mariadb.contents[database["name"]] = BEFORE
    world.file("dump.sql", b"CREATE TABLE things (id int);")
    return database


async def replaced(world: World, database: dict[str, Any]) -> dict[str, Any]:
    return await world.ended(
        await world.ada.post(f"/databases/{database['id']}/import", {"path": "dump.sql", "replace": True})
    )


async def as_the_earlier_release(tx: Transaction, job: NewJob) -> Job:
    return await enqueue(tx, replace(job, steps=("empty", "load")))


def places(world: World) -> Places:
    return Places(world.panel.services.config.folders)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_dump_changes_nothing(
    panel_database: Database, tmp_path: Any, name: str, replace: bool
) -> None:
    asked: list[str] = []

    async def before(method: str) -> None:
        asked.append(method)

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.file("dump.sql", WRONG[name])
        world.mariadb.before = before
        wanted = {"path": "dump.sql", "replace": replace}
        job = await world.ended(await world.ada.post(f"/databases/{database['id']}/import", wanted))

    assert (job["status"], job["error"]["code"]) == ("failed", "invalid")
    assert world.mariadb.contents[database["name"]] == BEFORE
    assert "empty_database" not in asked
    assert "load" not in asked


@pytest.mark.parametrize("engine", list(EngineKind))
async def test_of_all_wrong_files_at_once_none_takes_anything_away(
    panel_database: Database, tmp_path: Path, engine: EngineKind
) -> None:
    """What the program that reads dumps refuses, each brought to a database that holds something."""
    wrong = {name: content for name, (dialect, content, _) in NONE.items() if dialect == engine.value}
    wrong |= {f"{name}, cut": text.encode() for name, (dialect, text) in CUT.items() if dialect == engine.value}
    wrong |= {f"{name}, packed": gzip.compress(content) for name, content in wrong.items()}
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(user="ada", engine=engine.value))["database"]
        server = world.mariadb if engine is EngineKind.MARIADB else world.postgresql
        server.contents[database["name"]] = BEFORE
        for name, content in wrong.items():
            world.file("dump.sql", content)
            job = await replaced(world, database)
            assert (job["status"], job["error"]["code"]) == ("failed", "invalid"), name
            assert server.contents[database["name"]] == BEFORE, name
        left = [*places(world).kept_aside(), *places(world).left_over()]

    assert len(wrong) >= 18
    assert left == []


async def test_what_cannot_be_loaded_leaves_what_was_there(panel_database: Database, tmp_path: Any) -> None:
    calls = 0

    async def broken(method: str) -> None:
        nonlocal calls
        if method == "load":
            calls += 1
            if calls == 1:
                world.mariadb.contents[database["name"]] = "a part"
                raise DatabaseError("ERROR 1273: unknown collation")

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        job = await replaced(world, database)
        left = [*places(world).kept_aside(), *places(world).left_over()]

    assert job["status"] == "failed"
    assert "unknown collation" in job["error"]["message"]
    assert world.mariadb.contents[database["name"]] == BEFORE
    assert left == []


async def test_what_cannot_be_dumped_is_not_replaced_and_the_way_out_is_named(
    panel_database: Database, tmp_path: Any
) -> None:
    """A view whose definer is gone, a table that has crashed."""

    async def broken(method: str) -> None:
        if method == "dump":
            raise ProgramFailed("mariadb-dump", 2, "Couldn't execute 'SHOW FIELDS FROM `seen`': there is no 's1_eve'")

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        job = await replaced(world, database)
        left = [*places(world).kept_aside(), *places(world).left_over()]

    assert (job["status"], job["error"]["code"]) == ("failed", "conflict")
    assert "cannot be dumped" in job["error"]["message"]
    assert "SHOW FIELDS FROM `seen`" in job["error"]["message"]
    assert "nothing was changed" in job["error"]["message"]
    assert "create it again and import without replace" in job["error"]["hint"]
    assert world.mariadb.contents[database["name"]] == BEFORE
    assert left == []


async def test_an_import_that_is_cancelled_while_it_loads_leaves_what_was_there(
    panel_database: Database, tmp_path: Any
) -> None:
    begun, calls = trio.Event(), 0

    async def stop(method: str) -> None:
        nonlocal calls
        if method == "load" and (calls := calls + 1) == 1:
            world.mariadb.contents[database["name"]] = "a part"
            begun.set()
            await trio.sleep_forever()

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = stop
        wanted = {"path": "dump.sql", "replace": True}
        order = await world.ada.post(f"/databases/{database['id']}/import", wanted)
        with trio.fail_after(60):
            await begun.wait()
        await world.ada.post(f"/jobs/{order.json()['id']}/cancel")
        job = await world.ended(order)

    assert job["status"] == "cancelled"
    assert world.mariadb.contents[database["name"]] == BEFORE


@pytest.mark.parametrize(
    ("dump", "status", "after"),
    [
        (b"CREATE TABLE things (id int);", "succeeded", "CREATE TABLE things (id int);"),
        (b"-- only a comment\n", "failed", BEFORE),
    ],
)
async def test_what_the_earlier_release_queued_is_done_as_safely(
    panel_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dump: bytes,
    status: str,
    after: str,
) -> None:
    monkeypatch.setattr(transfers, "enqueue", as_the_earlier_release)
    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.file("dump.sql", dump)
        job = await replaced(world, database)
        left = [*places(world).kept_aside(), *places(world).left_over()]

    assert (job["status"], [step["name"] for step in job["steps"]]) == (status, ["empty", "load"]), job
    assert world.mariadb.contents[database["name"]] == after
    assert left == []


async def test_an_import_of_the_earlier_release_that_cannot_be_loaded_puts_back_what_was_there(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def broken(method: str) -> None:
        nonlocal calls
        if method == "load" and (calls := calls + 1) == 1:
            raise DatabaseError("ERROR 1273: unknown collation")

    monkeypatch.setattr(transfers, "enqueue", as_the_earlier_release)
    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        job = await replaced(world, database)

    assert job["status"] == "failed"
    assert "unknown collation" in job["error"]["message"]
    assert world.mariadb.contents[database["name"]] == BEFORE


async def test_what_cannot_be_put_back_at_once_is_put_back_later(panel_database: Database, tmp_path: Any) -> None:
    away = True

    async def broken(method: str) -> None:
        if method == "load" and away:
            raise DatabaseError("the server is gone")

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        job = await replaced(world, database)
        kept = places(world).kept_aside()
        away = False
        later = await replaced(world, database)

    assert "is retried every ten minutes" in job["error"]["hint"]
    assert kept == [job["id"]]
    assert later["status"] == "succeeded", later
    assert places(world).kept_aside() == []
    assert world.mariadb.contents[database["name"]] == "CREATE TABLE things (id int);"


async def test_what_was_put_aside_is_put_back_by_records_that_do_not_know_the_job(
    panel_database: Database, tmp_path: Path
) -> None:
    """As those of an earlier day; its number may be another job's by now."""
    away = True

    async def broken(method: str) -> None:
        if method == "load" and away:
            raise DatabaseError("the server is gone")

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        failed = await replaced(world, database)
        await panel_database.execute("DELETE FROM jobs WHERE id = $1", failed["id"])
        away = False
        world.file("more.sql", b"CREATE TABLE more (id int);")
        wanted = {"path": "more.sql"}
        await world.ended(await world.ada.post(f"/databases/{database['id']}/import", wanted))
        loads = [source for _, source, _ in world.mariadb.loaded]

    assert [source.name for source in loads if isinstance(source, Path)] == [f"mariadb-{database['name']}.sql.gz"]
    assert places(world).kept_aside() == []


async def test_an_import_for_which_there_is_no_room_changes_nothing(
    panel_database: Database, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Places, "free_bytes", lambda places: 1000)
    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        job = await replaced(world, database)

    assert (job["status"], job["error"]["code"]) == ("failed", "conflict")
    assert "are free" in job["error"]["message"]
    assert world.mariadb.contents[database["name"]] == BEFORE


@pytest.mark.parametrize("method", ["look", "dump"])
async def test_a_step_that_fails_before_anything_is_removed_leaves_nothing(
    panel_database: Database, tmp_path: Any, method: str
) -> None:
    async def broken(asked: str) -> None:
        if asked == method:
            raise unavailable("it does not answer")

    async with world_of(panel_database, tmp_path) as world:
        database = await filled(world)
        world.mariadb.before = broken
        job = await replaced(world, database)
        left = [*places(world).kept_aside(), *places(world).left_over()]

    assert job["status"] == "failed"
    assert world.mariadb.contents[database["name"]] == BEFORE
    assert left == []


EMPTIES = {
    "panel/backups/databases.py": "a restoration: dumped aside before, put back when it fails (test_databases.py)",
    "panel/databases/transfers.py": "an import that replaces: as this file shows",
    "panel/databases/agreeing.py": "what the others call",
    "panel/imports/applying.py": "a site that the import itself has made; its dump was looked at",
    "panel/staging/copying.py": "a copy, by a dump of the live site that was made before",
}


def test_whoever_empties_a_database_is_listed_with_what_becomes_of_its_content() -> None:
    root = Path(svc_actors.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in (root / "panel").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr == "empty_database"
        or (node.func.attr == "empty" and "databases" in ast.unparse(node.func.value))
    }

    assert found == set(EMPTIES)
