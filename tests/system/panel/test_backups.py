"""Backups with the real restic: of sites that are damaged and hostile, to targets that die, by killed cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.accounts import FIRST_UID
from svc_webhost.databases import Access, DatabaseName, EngineKind, UserName
from svc_webhost.folders import HostFolders
from svc_webhost.restic import SystemRestic, cell
from tests.support.databases import engines_in, engines_of_a_module
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.site_backups import Backed, open_backed
from tests.support.site_files import give
from tests.support.sshd import Sshd, open_sshd

pytestmark = [pytest.mark.system, pytest.mark.isolated]

INTERRUPTED = "interrupted: core restarted"


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[Backed]:
    async with open_backed(panel_database, tmp_path, SystemRestic()) as world:
        yield world


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[Sshd]:
    async with open_sshd(tmp_path / "sshd") as server:
        yield server


async def test_a_hostile_and_damaged_site_comes_back_byte_for_byte(world: Backed, tmp_path: Path) -> None:
    home = world.home.path
    secret = tmp_path / "root-secret"
    secret.write_text("a secret of root")
    awkward = [" * [x] $HOME\\", "line\nbreak", os.fsdecode(b"not-\xff-utf8"), "-n", "\N{SNOWMAN}"]
    for number, name in enumerate(awkward):
        give(world.home, f"public/{name}", os.urandom(1000 + number)).chmod(0o604)
    (home / "public" / "out").symlink_to(secret)
    os.lchown(home / "public" / "out", world.home.uid, world.home.gid)
    before = world.tree()
    (home / "public" / "of-root").hardlink_to(secret)
    os.mkfifo(home / "public" / "pipe")
    backup = await world.backup()

    (home / "public" / "index.html").write_bytes(b"defaced")
    (home / "public" / "logo.png").unlink()
    (home / "private" / "secret.txt").chmod(0o777)
    give(world.home, "public/shell.php", b"<?php evil")
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore"))
    whole = world.tree()
    (home / "public" / awkward[0]).write_bytes(b"damaged")
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {"path": f"public/{awkward[0]}"}))

    assert whole == before
    assert world.tree() == before
    assert secret.read_text() == "a secret of root"
    assert world.left() == []


async def test_a_backup_that_the_records_do_not_know_is_listed_again_as_it_was(world: Backed) -> None:
    lost = await world.backup()
    before = world.tree()
    await world.panel.database.execute("DELETE FROM site_backups")
    (world.home.path / "public" / "index.html").write_bytes(b"defaced")

    await world.backup()
    found = (await world.root.get(f"/backups/{lost['id']}")).json()
    await world.done(await world.ada.post(f"/backups/{lost['id']}/restore"))

    assert (found["cause"], found["files"], found["bytes"]) == ("adopted", lost["files"], lost["bytes"])
    assert found["created_at"] < lost["completed_at"]
    assert world.tree() == before


async def test_no_path_of_a_site_leads_root_out_of_it(world: Backed, tmp_path: Path) -> None:
    """What a race would put in the place of a folder is there from the beginning here."""
    outside, mounted = tmp_path / "outside", tmp_path / "mounted"
    outside.mkdir()
    mounted.mkdir()
    (outside / "secret").write_text("a secret of root")
    (world.home.path / "public" / "folder").symlink_to(outside)
    command = [sys.executable, "-I", "-S", cell.__file__, str(world.home.path), str(mounted)]

    def inside(*program: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *program], capture_output=True, text=True, check=False)

    plain = inside("cat", str(mounted / "private" / "secret.txt"))
    led_out = inside("cat", str(mounted / "public" / "folder" / "secret"))
    written = inside("touch", str(mounted / "public" / "new"))
    foreign = inside("cp", "/dev/null", str(world.home.path / "public" / "new"))

    assert plain.stdout == "hush"
    assert (led_out.returncode, led_out.stdout) == (1, "")
    assert "Too many levels of symbolic links" in led_out.stderr
    assert "Read-only file system" in written.stderr
    assert "Permission denied" in foreign.stderr
    assert not list(mounted.iterdir()), "the mount is seen outside"


async def test_a_target_that_dies_mid_way_is_told_and_has_the_next_backup(
    world: Backed, sshd: Sshd, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    wanted = {"name": "nas", "host": "127.0.0.1", "port": sshd.port, "user": "root", "path": str(there)}
    target = await world.root.post("/backups/targets/sftp", wanted | {"host_key": sshd.host_key})
    assert target.status_code == 201, target.text
    sshd.let_in(target.json()["public_key"])
    await sshd.start()
    give(world.home, "private/large.bin", os.urandom(48 << 20))

    answer = await world.ada.post(f"/sites/{world.site}/backups")
    with trio.fail_after(240):
        while not list(there.glob("*/data/*/*")):
            await trio.sleep(0.01)  # restic writes it outside of this process.
    sshd.kill()
    job = await world.ended(answer)
    died = await world.newest()
    # As restic leaves it that is killed while it writes: nothing else would ever remove it.
    unfinished = next(there.glob("*/data/*")) / f"{'5' * 64}-restic-temp-{'a' * 32}"
    unfinished.write_bytes(b"unfinished")
    (world.home.path / "private" / "large.bin").unlink()
    await sshd.start()
    whole = await world.backup()

    assert job["status"] == "succeeded"
    assert died["status"] == "completed"
    assert died["copies"][0]["error"]
    assert await world.events() == ["backup.completed", "backup.remote_failed", "backup.completed"]
    assert whole["copies"][0]["error"] is None
    assert not unfinished.exists()


@pytest.fixture(scope="module")
def engines_folder() -> Iterator[Path]:
    with engines_of_a_module() as shared:
        yield shared


async def test_the_databases_of_a_site_are_tried_by_a_drill_and_come_back_with_it(
    panel_database: Database, tmp_path: Path, engines_folder: Path
) -> None:
    engines = engines_in(engines_folder)
    async with open_backed(panel_database, tmp_path, SystemRestic(), engines.servers) as world:
        # What loads a dump sees the server as the site's programs do: with the site's home beside the engines.
        seen = HostFolders(engines_folder).sites / world.home.path.name
        seen.mkdir(mode=0o711, parents=True)
        os.chown(seen, world.home.uid, world.home.gid)
        names = {}
        for kind in EngineKind:
            names[kind] = DatabaseName(f"{world.home.path.name}_shop")
            await panel_database.execute(
                "INSERT INTO databases (site_id, engine, name, status) VALUES ($1, $2, $3, 'active')",
                world.site,
                kind.value,
                names[kind],
            )
            server = engines.servers[kind]
            await server.ensure()
            await server.create_database(names[kind])
            user = UserName(names[kind])
            await server.create_user(user, server.verifier("a-password"), 5)
            await server.grant(user, {names[kind]: Access.FULL})
            table = "CREATE TABLE orders (id int); INSERT INTO orders VALUES (7);"
            made = await engines.ask(kind, table, names[kind], user, "a-password")
            assert made.ok, made.err
        backup = await world.backup()
        drill = await world.ended(await world.root.post("/backups/drills"))
        scratch = {kind: await engines.servers[kind].databases() - {names[kind]} for kind in EngineKind}
        (tried,) = (await world.root.get("/backups/drills")).json()["items"]
        for kind, name in names.items():
            changed = await engines.ask(
                kind, "DROP TABLE orders; CREATE TABLE later (id int);", name, name, "a-password"
            )
            assert changed.ok, changed.err

        await world.done(await world.ada.post(f"/backups/{backup['id']}/restore"))
        orders = {kind: await engines.ask(kind, "SELECT id FROM orders;", name) for kind, name in names.items()}
        later = {kind: await engines.ask(kind, "SELECT id FROM later;", name) for kind, name in names.items()}

    assert drill["status"] == "succeeded", drill
    assert (tried["status"], tried["databases"]) == ("succeeded", 2)
    assert not any(name.startswith("s1_") for left in scratch.values() for name in left)
    assert {kind: answer.out for kind, answer in orders.items()} == dict.fromkeys(EngineKind, "7")
    assert {kind: answer.ok for kind, answer in later.items()} == dict.fromkeys(EngineKind, False)


async def test_a_server_with_another_host_key_gets_nothing(world: Backed, sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "other"
    await trio.run_process(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)])
    host_key = " ".join(other.with_suffix(".pub").read_text().split()[:2])
    wanted = {"name": "nas", "host": "127.0.0.1", "port": sshd.port, "user": "root", "path": str(tmp_path / "there")}
    target = await world.root.post("/backups/targets/sftp", wanted | {"host_key": host_key})
    sshd.let_in(target.json()["public_key"])
    await sshd.start()

    backup = await world.backup()

    assert "failed" in backup["copies"][0]["error"] or "repository" in backup["copies"][0]["error"]
    assert not (tmp_path / "there").exists()


@pytest.fixture
async def programs() -> AsyncIterator[PanelPrograms]:
    async with open_panel_programs() as panel:
        await panel.start()
        await panel.customer()
        yield panel


async def test_a_core_that_is_killed_leaves_nothing_half_done(programs: PanelPrograms) -> None:
    site = await programs.site("shop.example.com")
    home = programs.data / "sites" / site["account"]
    uid = FIRST_UID + site["number"]
    page = home / "public" / "index.html"
    sparse = home / "private" / "large.bin"
    sparse.touch()
    os.truncate(sparse, 96 << 20)
    os.chown(sparse, uid, uid)

    first = await began(programs, f"/sites/{site['id']}/backups", "snapshot")
    interrupted = await killed(programs, first)
    failed = (await get(programs, "/backups"))["items"][0]
    sparse.unlink()
    (home / "private" / "small.bin").write_bytes(os.urandom(2 << 20))
    os.chown(home / "private" / "small.bin", uid, uid)
    whole = await finished(programs, await ordered(programs, f"/sites/{site['id']}/backups"))
    backup = (await get(programs, "/backups"))["items"][0]
    page.write_text("changed since")
    second = await began(programs, f"/backups/{backup['id']}/restore", "fetch")
    restoring = await killed(programs, second)
    kept = page.read_text()
    restored = await finished(programs, await ordered(programs, f"/backups/{backup['id']}/restore"))

    assert (interrupted["status"], interrupted["error"]["message"]) == ("failed", INTERRUPTED)
    assert (failed["status"], failed["error"]) == ("failed", INTERRUPTED)
    assert whole["status"] == "succeeded", whole
    assert (restoring["status"], restoring["error"]["message"]) == ("failed", INTERRUPTED)
    assert kept == "changed since"
    assert restored["status"] == "succeeded", restored
    assert "shop.example.com" in page.read_text()
    assert list((programs.data / "backups" / "work").iterdir()) == []
    assert list((programs.data / "sites").glob(".restore-*")) == []


async def began(panel: PanelPrograms, path: str, step: str) -> int:
    """The job that was ordered, when this step of it is running."""
    job_id = await ordered(panel, path)
    with trio.fail_after(240):
        while True:
            job = await get(panel, f"/jobs/{job_id}")
            assert job["ended_at"] is None, job
            if any(each["name"] == step and each["status"] == "running" for each in job["steps"]):
                return job_id
            await trio.sleep(0.02)  # Another process does it.


async def killed(panel: PanelPrograms, job_id: int) -> dict[str, Any]:
    """The job as the next core has it. Nothing of it runs any more."""
    await panel.core.kill()
    await panel.start()
    running = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit() and _works_for(entry, panel)]
    assert running == []
    return await get(panel, f"/jobs/{job_id}")


def _works_for(process: Path, panel: PanelPrograms) -> bool:
    try:
        told = process.joinpath("environ").read_bytes() + process.joinpath("cmdline").read_bytes()
    except OSError:
        return False
    return str(panel.data / "backups").encode() in told


async def ordered(panel: PanelPrograms, path: str) -> int:
    async with panel.client() as root:
        answer = await root.post(path, json={})
    assert answer.status_code == 200, answer.text
    job_id: int = answer.json()["id"]
    return job_id


async def finished(panel: PanelPrograms, job_id: int) -> dict[str, Any]:
    with trio.fail_after(240):
        while (job := await get(panel, f"/jobs/{job_id}"))["ended_at"] is None:
            await trio.sleep(0.1)  # Another process does it.
    return job


async def get(panel: PanelPrograms, path: str) -> dict[str, Any]:
    async with panel.client() as root:
        answer = await root.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
