"""Databases and their users over the API, with engines that do what they are told, or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from svc_actors.store import Database
from svc_webhost.databases import Access, DatabaseError, EngineKind
from tests.panel.databases.world import world_of
from tests.support.panel import open_panel
from tests.support.recorded_databases import undisturbed

BOTH = pytest.mark.parametrize("engine", list(EngineKind))


@BOTH
async def test_a_database_and_its_user_are_made_and_the_password_is_told_once(
    panel_database: Database, tmp_path: Path, engine: EngineKind
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        created = await world.create(engine=engine.value, user="ada")
        server = world.panel.host.databases[engine]
        listed = (await world.ada.get("/databases")).json()
        users = (await world.ada.get("/database-users")).json()
        stored = await panel_database.fetchval("SELECT string_agg(row::text, ' ') FROM database_users AS row")
        audit = [(row["operation"], row["target_name"]) for row in await world.panel.audit()]
        account = (world.mariadb if engine is EngineKind.MARIADB else world.postgresql).accounts[world.name("ada")]  # type: ignore[index]

    password = created["login"]["password"]
    assert created["database"]["name"] == world.name("shop")
    assert (created["database"]["status"], created["database"]["size"]) == ("active", 0)
    assert created["database"]["socket"] == str(server.socket)
    assert [each["name"] for each in listed["items"]] == [world.name("shop")]
    assert [each["grants"][0]["access"] for each in users["items"]] == ["full"]
    assert account.verifier == server.verifier(password)
    assert account.access == {world.name("shop"): Access.FULL}
    assert password not in str(listed) + str(users) + str(audit)
    assert "stored:" in stored
    assert ("database.create", world.name("shop")) in audit
    assert ("database.create", world.name("ada")) in audit


async def test_a_user_is_granted_and_revoked_and_given_a_new_password(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        shop = (await world.create("shop", user="ada"))["database"]
        blog = (await world.create("blog"))["database"]
        made = await world.ada.post(
            "/database-users", {"database_id": blog["id"], "name": "reader", "access": "read_only"}
        )
        user = f"/database-users/{made.json()['user']['id']}"
        both = await world.ada.post(f"{user}/grants", {"database_id": shop["id"], "access": "full"})
        account = world.mariadb.accounts[world.name("reader")]  # type: ignore[index]
        granted = dict(account.access)
        lowered = await world.ada.delete(f"{user}/grants/{blog['id']}", {})
        revoked = dict(world.mariadb.accounts[world.name("reader")].access)  # type: ignore[index]
        first = made.json()["password"]
        second = (await world.ada.post(f"{user}/password", {})).json()["password"]
        stored = world.mariadb.accounts[world.name("reader")].verifier  # type: ignore[index]
        gone = await world.ada.delete(user, {})
        again = await world.ada.get(user)

    assert made.status_code == 201
    assert both.status_code == lowered.status_code == 200
    assert granted == {world.name("blog"): Access.READ_ONLY, world.name("shop"): Access.FULL}
    assert revoked == {world.name("shop"): Access.FULL}
    assert first != second
    assert stored == f"stored:{second}"
    assert (gone.status_code, gone.json()) == (200, {})
    assert again.status_code == 404
    assert set(world.mariadb.accounts) == {world.name("ada")}


async def test_what_is_somebody_elses_is_as_absent_as_what_is_not_there(
    panel_database: Database, tmp_path: Path
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(user="ada"))["database"]
        export = await world.exported(database)
        user = (await world.ada.get("/database-users")).json()["items"][0]
        paths: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", "/databases/{database}", {}),
            ("DELETE", "/databases/{database}", {"confirm": database["name"]}),
            ("POST", "/databases/{database}/export", {}),
            ("POST", "/databases/{database}/import", {"path": "a.sql"}),
            ("GET", "/databases/exports/{export}", {}),
            ("GET", "/databases/exports/{export}/download", {}),
            ("DELETE", "/databases/exports/{export}", {}),
            ("GET", "/database-users/{user}", {}),
            ("POST", "/database-users/{user}/password", {}),
            ("POST", "/database-users/{user}/grants", {"database_id": database["id"]}),
            ("DELETE", "/database-users/{user}/grants/{database}", {}),
            ("DELETE", "/database-users/{user}", {}),
            ("POST", "/database-users", {"database_id": database["id"], "name": "bob"}),
        ]
        foreign, absent = [], []
        for method, path, body in paths:
            given = None if method == "GET" else body
            ids = {"database": database["id"], "export": export["id"], "user": user["id"]}
            foreign.append((await world.bob.call(method, path.format(**ids), given)).json())
            nobodys = {name: str(uuid4()) for name in ids}
            changed = body | ({"database_id": nobodys["database"]} if "database_id" in body else {})
            given = None if method == "GET" else changed
            absent.append((await world.bob.call(method, path.format(**nobodys), given)).json())
        lists = [
            (await world.bob.get(path)).json()["total"]
            for path in ("/databases", "/database-users", "/databases/exports")
        ]
        theirs = await world.bob.post("/databases", {"site_id": str(world.site), "name": "mine"})

    assert foreign == absent
    assert {answer["error"]["code"] for answer in foreign} == {"not_found"}
    assert lists == [0, 0, 0]
    assert theirs.status_code == 404
    assert set(world.mariadb.contents) == {database["name"]}


async def test_names_are_taken_once_and_cannot_be_anything(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        await world.create("shop")
        again = await world.ada.post("/databases", {"site_id": str(world.site), "name": "shop"})
        other_engine = await world.create("shop", engine="postgresql")
        wrong = [
            (await world.ada.post("/databases", {"site_id": str(world.site), "name": name})).status_code
            for name in ("", "A", "1a", "a-b", "a`b", "a'b", "a\0b", "a b", "x" * 33, "a;drop", "ä", "a\n")
        ]

    assert again.status_code == 409
    assert other_engine["database"]["status"] == "active"
    assert set(wrong) == {400}


async def test_a_plan_allows_so_many_databases_and_no_more(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        await panel_database.execute(
            """WITH plan AS (INSERT INTO hosting_plans (name, databases) VALUES ('small', 1) RETURNING id)
               INSERT INTO hosting_accounts (user_id, plan_id)
               SELECT users.id, plan.id FROM users, plan WHERE email = 'ada@example.com'"""
        )
        await world.create("one")
        second = await world.ada.post("/databases", {"site_id": str(world.site), "name": "two"})

    assert second.status_code == 409
    assert "allows 1 databases" in second.json()["error"]["message"]
    assert set(world.mariadb.contents) == {world.name("one")}


async def test_a_deleted_database_goes_with_its_grants_and_needs_its_name(
    panel_database: Database, tmp_path: Path
) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(user="ada"))["database"]
        await world.exported(database)
        unconfirmed = await world.ada.delete(f"/databases/{database['id']}", {"confirm": world.name("other")})
        there = set(world.mariadb.contents)
        deleted = await world.ada.delete(f"/databases/{database['id']}", {"confirm": database["name"]})
        files = list(world.panel.services.config.folders.exports.iterdir())
        shown = await world.ada.get(f"/databases/{database['id']}")

    assert unconfirmed.status_code == 400
    assert there == {database["name"]}
    assert (deleted.status_code, deleted.json()) == (200, {})
    assert shown.status_code == 404
    assert world.mariadb.contents == {}
    assert world.mariadb.accounts[world.name("ada")].access == {}  # type: ignore[index]
    assert files == []


@pytest.mark.parametrize("step", ["ensure", "create_database", "create_user", "grant"])
async def test_what_an_engine_did_not_do_is_done_by_the_next_core(
    panel_database: Database, tmp_path: Path, step: str
) -> None:
    async def broken(method: str) -> None:
        if method == step:
            raise DatabaseError("the disk is full")

    async with world_of(panel_database, tmp_path) as world:
        host = world.panel.host
        world.mariadb.before = broken
        wanted = {"site_id": str(world.site), "name": "shop", "user": "ada"}
        refused = await world.ada.post("/databases", wanted)
        shown = [
            *(await world.ada.get("/databases")).json()["items"],
            *(await world.ada.get("/database-users")).json()["items"],
        ]
        world.mariadb.before = undisturbed
    async with open_panel(panel_database, tmp_path, host, loops=()) as panel:
        await panel.services.databases.resume()
        states = [row["status"] for row in await panel_database.fetch("SELECT status, problem FROM databases")]

    assert refused.status_code == 503
    assert "the disk is full" in refused.json()["error"]["message"]
    assert "the disk is full" in str(shown)
    assert states == ["active"]
    assert set(world.mariadb.contents) == {world.name("shop")}
    assert world.mariadb.accounts[world.name("ada")].access == {world.name("shop"): Access.FULL}  # type: ignore[index]


async def test_an_engine_runs_while_there_is_something_in_it(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        await world.panel.services.databases.resume()
        unused = (world.mariadb.running, world.postgresql.running)
        database = (await world.create())["database"]
        used = (world.mariadb.running, world.postgresql.running)
        await world.ada.delete(f"/databases/{database['id']}", {"confirm": database["name"]})
        await world.panel.services.databases.resume()
        left = world.mariadb.running

    assert unused == (False, False)
    assert used == (True, False)
    assert not left


async def test_a_deleted_site_leaves_no_database_and_no_user(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        database = (await world.create(user="ada"))["database"]
        await world.create("data", engine="postgresql", user="ada")
        await world.exported(database)
        job = await world.ended(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
        left = await panel_database.fetchval(
            "SELECT (SELECT count(*) FROM databases) + (SELECT count(*) FROM database_users)"
        )
        files = list(world.panel.services.config.folders.exports.iterdir())

    assert job["status"] == "succeeded", job
    assert (world.mariadb.contents, world.mariadb.accounts) == ({}, {})
    assert (world.postgresql.contents, world.postgresql.accounts) == ({}, {})
    assert left == 0
    assert files == []


async def test_a_site_whose_databases_cannot_be_removed_is_not_called_deleted(
    panel_database: Database, tmp_path: Path
) -> None:
    async def broken(method: str) -> None:
        if method == "drop_database":
            raise DatabaseError("the disk is full")

    async with world_of(panel_database, tmp_path) as world:
        await world.create()
        world.mariadb.before = broken
        job = await world.ended(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
        site = (await world.ada.get(f"/sites/{world.site}")).json()

    assert job["status"] == "failed"
    assert "the disk is full" in job["error"]["message"]
    assert site["status"] == "failed"
