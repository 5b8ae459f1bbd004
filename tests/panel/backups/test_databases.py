"""The databases of a site in its backups: they come back with it, one of them alone, and stay where one fails."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.panel.backups import ConfigurationRestore, Places
from svc_common.errors import unavailable
from svc_webhost.databases import DatabaseError, DatabaseName, EngineKind
from svc_webhost.folders import HostFolders
from svc_webhost.tree_switch import switch
from tests.support.recorded_databases import RecordedDatabases, undisturbed
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed

KINDS = (EngineKind.MARIADB, EngineKind.POSTGRESQL)


def engine(world: Backed, kind: EngineKind = EngineKind.MARIADB) -> RecordedDatabases:
    return cast(RecordedDatabases, world.panel.host.databases[kind])


async def with_database(world: Backed, kind: EngineKind, called: str, content: str, *, other: bool = False) -> str:
    """A database of the site, or of the other one, that is active and has this content; its name."""
    site = world.other_site if other else world.site
    number = await world.panel.database.fetchval("SELECT number FROM sites WHERE id = $1", site)
    name = DatabaseName(f"s{number}_{called}")
    await world.panel.database.execute(
        "INSERT INTO databases (site_id, engine, name, status) VALUES ($1, $2, $3, 'active')", site, kind.value, name
    )
    server = engine(world, kind)
    await server.ensure()
    server.contents[name] = content
    return name


def content(world: Backed, kind: EngineKind, name: str) -> str:
    return engine(world, kind).contents[DatabaseName(name)]


def change(world: Backed, kind: EngineKind, name: str, content: str) -> None:
    engine(world, kind).contents[DatabaseName(name)] = content


async def test_a_site_comes_back_with_its_databases(world: Backed) -> None:
    names = {kind: await with_database(world, kind, "shop", f"orders in {kind}") for kind in KINDS}
    backup = await world.backup()
    for kind, name in names.items():
        change(world, kind, name, "dropped")

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert sorted(backup["databases"]) == sorted(names.values())
    assert {kind: content(world, kind, name) for kind, name in names.items()} == {
        kind: f"orders in {kind}" for kind in KINDS
    }
    assert world.left() == []


async def test_one_database_comes_back_and_nothing_else_changes(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    blog = await with_database(world, EngineKind.MARIADB, "blog", "posts")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, shop, "damaged")
    change(world, EngineKind.MARIADB, blog, "newer posts")
    (world.home.path / "public" / "index.html").write_bytes(b"newer page")
    before = world.tree()

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {"database": shop}))

    assert content(world, EngineKind.MARIADB, shop) == "orders"
    assert content(world, EngineKind.MARIADB, blog) == "newer posts"
    assert world.tree() == before


async def test_a_file_alone_leaves_the_databases(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, shop, "newer orders")

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {"path": "public/index.html"}))

    assert content(world, EngineKind.MARIADB, shop) == "newer orders"


@pytest.mark.parametrize("failing_at", ["empty_database", "load"])
async def test_databases_are_put_back_where_one_of_them_is_not_loaded(world: Backed, failing_at: str) -> None:
    blog = await with_database(world, EngineKind.MARIADB, "blog", "posts")
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, blog, "newer posts")
    change(world, EngineKind.MARIADB, shop, "newer orders")
    before = world.tree()
    calls = 0

    async def second_fails(method: str) -> None:
        nonlocal calls
        calls += method == failing_at
        if calls == 2 and method == failing_at:
            calls += 1
            raise DatabaseError("the engine says no")

    engine(world).before = second_fails
    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert job["status"] == "failed"
    assert content(world, EngineKind.MARIADB, blog) == "newer posts"
    assert content(world, EngineKind.MARIADB, shop) == "newer orders"
    assert world.tree() == before


async def test_a_kill_in_the_midst_of_a_restoration_leaves_no_half_database(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, shop, "newer orders")
    await killed_while_loading(world, backup, shop)

    await world.round()
    await world.quiet()

    assert content(world, EngineKind.MARIADB, shop) == "newer orders"
    assert [each["status"] for each in await world.jobs("backup.put_back")] == ["succeeded"]
    assert world.left() == []


async def test_a_database_server_that_dies_while_it_loads_leaves_no_half_database(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, shop, "newer orders")

    async def dies(method: str) -> None:
        if method == "load":
            change(world, EngineKind.MARIADB, shop, "a half")
            engine(world).running = False

    engine(world).before = dies
    failed = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))
    half = content(world, EngineKind.MARIADB, shop)
    engine(world).before, engine(world).running = undisturbed, True
    await world.round()
    await world.quiet()

    assert (failed["status"], half) == ("failed", "a half")
    assert content(world, EngineKind.MARIADB, shop) == "newer orders"
    assert world.left() == []


async def test_a_backup_holds_no_half_database(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    first = await world.backup()
    change(world, EngineKind.MARIADB, shop, "newer orders")
    Places(HostFolders(world.folder)).keep_aside(await killed_while_loading(world, first, shop))

    second = await world.backup()
    change(world, EngineKind.MARIADB, shop, "damaged")
    await world.done(await world.ada.post(f"/backups/{second['id']}/restore"))

    assert content(world, EngineKind.MARIADB, shop) == "newer orders"


async def killed_while_loading(world: Backed, backup: dict[str, Any], shop: str) -> int:
    """The job of a restoration as the next core finds it: what was put aside is there, and the database holds a half of
    what it should get."""
    places, kept = Places(HostFolders(world.folder)), world.folder / "kept"

    async def killed(method: str) -> None:
        if method == "load" and not kept.exists():
            [job] = await world.jobs("backup.restore")
            shutil.copytree(places.aside(job["id"]), kept)
            raise DatabaseError("killed")

    engine(world).before = killed
    failed = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))
    engine(world).before = undisturbed
    places.make_work(failed["id"], "key")
    kept.rename(places.aside(failed["id"]))
    change(world, EngineKind.MARIADB, shop, "a half")
    return int(failed["id"])


async def test_a_database_that_is_not_there_any_more_is_told_before_anything_is_changed(world: Backed) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    await world.panel.database.execute("DELETE FROM databases")
    (world.home.path / "public" / "index.html").write_bytes(b"newer page")
    before = world.tree()

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))
    unknown = await world.ada.post(f"/backups/{backup['id']}/restore", {"database": "s1_other"})

    assert job["status"] == "failed"
    assert shop in job["error"]["message"]
    assert world.tree() == before
    assert unknown.status_code == 404


async def test_a_dump_that_fails_ends_the_backup(world: Backed, restic: RecordedRestic) -> None:
    await with_database(world, EngineKind.MARIADB, "shop", "orders")
    engine(world).running = False

    job = await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))

    assert job["status"] == "failed"
    assert (await world.newest())["status"] == "failed"
    assert [held for held in restic.repositories.values() if held] == []


async def test_a_file_switch_that_fails_puts_the_databases_back(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    change(world, EngineKind.MARIADB, shop, "newer orders")
    restic.before = failing("nothing")

    def refused(*arguments: object) -> None:
        raise PermissionError("the site's folder is not the site's")

    monkeypatch.setattr("svc_actors.panel.backups.restore.switch", refused)
    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert job["status"] == "failed"
    assert content(world, EngineKind.MARIADB, shop) == "newer orders"


@pytest.mark.parametrize("parts", [["files", "databases", "configuration"], ["databases", "configuration"]])
async def test_a_configuration_that_is_refused_takes_back_neither_files_nor_databases(
    world: Backed, monkeypatch: pytest.MonkeyPatch, parts: list[str]
) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    backed_up = world.tree()
    change(world, EngineKind.MARIADB, shop, "newer orders")
    (world.home.path / "public" / "index.html").write_bytes(b"newer page")
    newer = world.tree()

    async def refused(*arguments: object) -> None:
        raise unavailable("The name server says no.")

    monkeypatch.setattr(ConfigurationRestore, "restore", refused)
    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", {"parts": parts}))
    await world.round()
    await world.quiet()

    assert (job["status"], job["error"]["message"]) == ("failed", "The name server says no.")
    assert content(world, EngineKind.MARIADB, shop) == "orders"
    assert world.tree() == (backed_up if "files" in parts else newer)
    assert await world.jobs("backup.put_back") == []
    assert world.left() == []


async def test_a_restoration_that_is_cancelled_when_files_are_exchanged_keeps_the_databases_that_go_with_them(
    world: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = await with_database(world, EngineKind.MARIADB, "shop", "orders")
    backup = await world.backup()
    backed_up = world.tree()
    change(world, EngineKind.MARIADB, shop, "newer orders")
    (world.home.path / "public" / "index.html").write_bytes(b"newer page")

    def cancelled(home: Path, uid: int, staging: Path, new: Path, kept: list[str]) -> None:
        switch(home, uid, staging, new, kept)
        job_id = int(staging.name.rpartition("-")[2])
        trio.from_thread.run_sync(world.panel.services.jobs.stop, job_id)

    monkeypatch.setattr("svc_actors.panel.backups.restore.switch", cancelled)
    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))
    await world.round()
    await world.quiet()

    assert job["status"] == "cancelled"
    assert (content(world, EngineKind.MARIADB, shop), world.tree()) == ("orders", backed_up)
    assert await world.jobs("backup.put_back") == []
    assert world.left() == []


async def test_a_database_comes_to_the_one_that_is_called_so_in_another_site(world: Backed) -> None:
    await with_database(world, EngineKind.POSTGRESQL, "shop", "orders")
    theirs = await with_database(world, EngineKind.POSTGRESQL, "shop", "", other=True)
    await world.panel.database.execute(
        "UPDATE sites SET owner_id = (SELECT owner_id FROM sites WHERE id = $1) WHERE id = $2",
        world.site,
        world.other_site,
    )
    backup = await world.backup()

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {"site": str(world.other_site)}))

    assert content(world, EngineKind.POSTGRESQL, theirs) == "orders"
