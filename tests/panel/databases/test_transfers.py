"""Exports and imports over the API, with engines that a test plays."""

from __future__ import annotations

import base64
import gzip
import hashlib
from datetime import timedelta
from pathlib import Path

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.databases import DatabaseError, SiteFile
from tests.panel.databases.world import world_of


async def test_an_export_is_downloaded_in_pages_and_audited_once(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create())["database"]
        world.mariadb.contents[database["name"]] = "CREATE TABLE things (id int);"
        export = await world.exported(database)
        pages = []
        for offset in range(0, export["size"], 10):
            answer = await world.ada.get(f"/databases/exports/{export['id']}/download?offset={offset}&limit=10")
            pages.append(answer.json())
        rows = [row for row in await world.panel.audit() if row["operation"] == "export.download"]

    content = b"".join(base64.b64decode(page["data_base64"]) for page in pages)
    assert gzip.decompress(content).decode() == "CREATE TABLE things (id int);"
    assert hashlib.sha256(content).hexdigest() == export["sha256"]
    assert {page["size"] for page in pages} == {len(content)} == {export["size"]}
    assert pages[0]["sha256"] == hashlib.sha256(content[:10]).hexdigest()
    assert [row["target_name"] for row in rows] == [database["name"]]


async def test_an_export_expires_with_its_file(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        export = await world.exported((await world.create())["database"])
        folder = world.panel.services.config.folders.exports
        there = len(list(folder.iterdir()))
        await panel_database.execute("UPDATE database_exports SET expires_at = now() - $1::interval", timedelta(1))
        await world.panel.services.transfers.sweep()
        answer = await world.ada.get(f"/databases/exports/{export['id']}/download")

    assert there == 1
    assert list(folder.iterdir()) == []
    assert answer.status_code == 404


async def test_of_an_export_that_fails_nothing_is_left(panel_database: Database, tmp_path: Path) -> None:
    async def broken(method: str) -> None:
        if method == "dump":
            raise DatabaseError("the disk is full")

    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create())["database"]
        world.mariadb.before = broken
        job = await world.ended(await world.ada.post(f"/databases/{database['id']}/export", {}))
        exports = (await world.ada.get("/databases/exports")).json()

    assert job["status"] == "failed"
    assert job["error"]["message"] == "the disk is full"
    assert exports["total"] == 0


async def test_an_import_takes_a_file_of_the_site_as_its_account(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create())["database"]
        world.file("dump.sql", b"CREATE TABLE things (id int);")
        absent = await world.ada.post(f"/databases/{database['id']}/import", {"path": "nothing.sql"})
        neither = await world.ada.post(f"/databases/{database['id']}/import", {})
        outside = await world.ada.post(f"/databases/{database['id']}/import", {"path": "../s1/dump.sql"})
        job = await world.ended(await world.ada.post(f"/databases/{database['id']}/import", {"path": "dump.sql"}))

    assert absent.status_code == 404
    assert (neither.status_code, outside.status_code) == (400, 400)
    assert job["status"] == "succeeded", job
    assert world.mariadb.contents[database["name"]] == "CREATE TABLE things (id int);"
    [(_, source, account)] = world.mariadb.loaded
    assert source == SiteFile(world.home, "dump.sql")
    assert account.number == world.number


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("mariadb", "if this is interrupted, a part of the dump is in {name}: import it again with replace"),
        ("postgresql", "if this is interrupted, nothing of the dump is in {name}"),
    ],
)
async def test_the_log_of_an_import_that_is_cut_short_says_what_is_there(
    panel_database: Database, tmp_path: Path, engine: str, words: str
) -> None:
    begun = trio.Event()

    async def stop(method: str) -> None:
        if method == "load":
            begun.set()
            await trio.sleep_forever()

    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(engine=engine))["database"]
        world.file("dump.sql", b"CREATE TABLE things (id int);")
        world.mariadb.before = world.postgresql.before = stop
        order = await world.ada.post(f"/databases/{database['id']}/import", {"path": "dump.sql"})
        with trio.fail_after(60):
            await begun.wait()
        await world.ada.post(f"/jobs/{order.json()['id']}/cancel")
        job = await world.ended(order)
        log = (await world.ada.get(f"/jobs/{job['id']}/log")).text

    assert job["status"] == "cancelled"
    assert words.format(name=database["name"]) in log


async def test_an_export_brings_back_what_was_damaged(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(user="ada"))["database"]
        world.mariadb.contents[database["name"]] = "as it was"
        export = await world.exported(database)
        world.mariadb.contents[database["name"]] = "damaged"
        job = await world.ended(
            await world.ada.post(f"/databases/{database['id']}/import", {"export": export["id"], "replace": True})
        )
        elsewhere = (await world.create("data", engine="postgresql"))["database"]
        refused = await world.ada.post(f"/databases/{elsewhere['id']}/import", {"export": export["id"]})

    assert [step["status"] for step in job["steps"]] == ["succeeded"] * 3
    assert world.mariadb.contents[database["name"]] == "as it was"
    assert world.mariadb.accounts[world.name("ada")].access != {}  # type: ignore[index]
    assert refused.status_code == 404
