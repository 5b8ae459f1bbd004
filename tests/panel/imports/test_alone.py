"""A part of an import that fails does so alone, is named, and is imported alone when the import is applied again."""

from __future__ import annotations

import os
from typing import Any

import pytest

from svc_common.errors import unavailable
from svc_webhost.confined.protocol import FileRequest, PlaceImported
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.databases import DatabaseError
from tests.panel.imports.world import World
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, DATABASE, MAIN

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="archives are unpacked by other accounts")

SYNTAX = "ERROR 1064 (42000) at line 7: You have an error in your SQL syntax"


async def notes(world: World, imported: dict[str, object]) -> list[tuple[str, str, str]]:
    return [(each["kind"], each["name"], each["reason"]) for each in (await world.shown(imported))["notes"]]


async def test_a_dump_that_fails_stops_nothing_else_and_is_loaded_alone_afterwards(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))

    async def refuse(method: str) -> None:
        if method == "load":
            raise DatabaseError(SYNTAX)

    world.mariadb.before = refuse
    job = await world.applied(imported)
    failed, said = await world.shown(imported), await notes(world, imported)
    site = await world.site(MAIN)
    tasks = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()
    empty = set(world.mariadb.contents.values())
    served = world.name_server.answers(MAIN, "A")
    page = world.home(site) / "public/index.php"
    page.write_text("<?php echo 'changed since';")
    world.mariadb.before = type(world.mariadb)(world.mariadb.kind).before

    again = await world.applied(imported)
    configuration = (world.home(site) / "public/wp-config.php").read_text()

    assert job["status"] == failed["status"] == "failed"
    assert failed["problem"] == (
        f"Not imported: the database {DATABASE} of {MAIN} (its dump was not loaded: {SYNTAX}). Everything else was."
    )
    assert said == [("database", DATABASE, f"its dump was not loaded: {SYNTAX}")]
    assert empty == {""}
    assert {task["path"] for task in tasks} >= {"public/cron.php", "/tasks?key=1"}
    assert served == {"203.0.113.80"}
    assert again["status"] == "succeeded", again
    assert (await world.shown(imported))["status"] == "applied"
    assert await notes(world, imported) == []
    assert set(world.mariadb.contents.values()) == {foreign.DUMP}
    assert page.read_text() == "<?php echo 'changed since';"
    assert f"define('DB_NAME', 's{site['number']}_wordpress');" in configuration
    assert not (world.home(site) / "private/.svc-import").exists()


async def test_a_site_whose_files_cannot_be_placed_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))
    ask = ConfinedFiles.ask

    async def asking(self: ConfinedFiles, folder: Any, request: FileRequest, *given: Any, **options: Any) -> Any:
        if isinstance(request, PlaceImported) and not placed:
            placed.append(request)
            raise unavailable("The disk is full.")
        return await ask(self, folder, request, *given, **options)

    placed: list[object] = []
    with monkeypatch.context() as patched:
        patched.setattr(ConfinedFiles, "ask", asking)
        job = await world.applied(imported)
    problem, said = (await world.shown(imported))["problem"], await notes(world, imported)
    main, addon = [world.home(await world.site(domain)) / "public" for domain in (MAIN, ADDON)]
    before = [(main / "INDEX.html").exists(), (addon / "css/style.css").exists()]
    (addon / "css/style.css").write_text("changed since")

    again = await world.applied(imported)

    assert job["status"] == "failed"
    assert problem == (
        f"Not imported: the site {MAIN} (its files were not placed: The disk is full.). Everything else was."
    )
    assert said == [("files", MAIN, "its files were not placed: The disk is full.")]
    assert before == [False, True]
    assert again["status"] == "succeeded", again
    assert (main / "INDEX.html").exists()
    assert set(world.mariadb.contents.values()) == {foreign.DUMP}
    assert (addon / "css/style.css").read_text() == "changed since"


async def test_a_part_that_is_left_out_afterwards_completes_the_import(world: World) -> None:
    imported = await world.uploaded(foreign.cpanel(foreign.model()))

    async def refuse(method: str) -> None:
        if method == "load":
            raise DatabaseError("ERROR 1153 (08S01): Got a packet bigger than 'max_allowed_packet' bytes")

    world.mariadb.before = refuse
    failed = await world.applied(imported)
    again = await world.applied(imported, without=[f"database:{DATABASE}"])

    assert (failed["status"], again["status"]) == ("failed", "succeeded")
    assert (await world.shown(imported))["status"] == "applied"


async def test_if_the_plan_has_no_room_for_one_site_none_is_created(world: World) -> None:
    await world.root.post("/plans", {"name": "one", "sites": 1})
    cy = {"email": "cy@example.com", "name": "Cy", "plan": "one", "password": "Correct-Horse-43"}
    ordered = await world.root.post("/accounts", cy)
    imported = await world.uploaded(foreign.cpanel(foreign.model()), world.root)

    path = f"/imports/{imported['id']}/apply"
    begun = (await world.root.post(path, {"owner_email": "cy@example.com"})).json()
    job = await world.job(begun["id"], world.root)
    sites = (await world.root.get("/sites")).json()["items"]

    assert ordered.status_code == 201, ordered.text
    assert job["status"] == "failed"
    assert "sites" in job["error"]["message"], job
    assert sites == []
