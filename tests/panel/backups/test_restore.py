"""What a restoration does to a site, and what it leaves alone when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.panel.backups import Places
from svc_actors.panel.backups.places import SPARE_BYTES
from svc_webhost.confined import kernel
from svc_webhost.folders import HostFolders
from svc_webhost.tree_switch import switch
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed
from tests.support.site_files import give


async def test_a_site_is_byte_for_byte_what_it_was_with_modes_and_owners(world: Backed) -> None:
    (world.home.path / "public" / "link").symlink_to("/etc/passwd")
    before = world.tree()
    backup = await world.backup()
    (world.home.path / "public" / "index.html").write_bytes(b"defaced")
    (world.home.path / "public" / "logo.png").unlink()
    (world.home.path / "private" / "secret.txt").chmod(0o644)
    give(world.home, "public/shell.php", b"<?php evil")
    give(world.home, "added/later.txt")

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert job["status"] == "succeeded"
    assert before.items() <= world.tree().items() | {("public/link", before["public/link"])}
    assert {name for name in world.tree() if name not in before} == set()
    assert world.left() == []


async def test_one_file_comes_back_and_nothing_else_changes(world: Backed) -> None:
    backup = await world.backup()
    before = world.tree()
    (world.home.path / "public" / "index.html").unlink()
    (world.home.path / "public" / "logo.png").write_bytes(b"another one")

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", {"path": "public/index.html"}))

    assert job["status"] == "succeeded"
    assert world.tree()["public/index.html"] == before["public/index.html"]
    assert world.tree()["public/logo.png"][2] == b"another one"
    assert world.left() == []


async def test_a_folder_comes_back_where_the_folders_above_it_are_gone(world: Backed) -> None:
    give(world.home, "public/a/b/c.txt", b"deep").chmod(0o400)
    (world.home.path / "public" / "a" / "b").chmod(0o555)
    backup = await world.backup()
    (world.home.path / "public" / "a").rename(world.home.path / "public" / "renamed")

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", {"path": "public/a/b"}))
    restored = world.home.path / "public" / "a" / "b"

    assert job["status"] == "succeeded", job
    assert (restored / "c.txt").read_bytes() == b"deep"
    assert restored.stat().st_mode & 0o777 == 0o555
    assert (restored / "c.txt").stat().st_mode & 0o777 == 0o400


async def test_a_path_that_is_not_in_the_backup_is_told_and_the_site_stays(world: Backed) -> None:
    backup = await world.backup()
    before = world.tree()

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore", {"path": "public/never.txt"}))

    assert job["status"] == "failed"
    assert "public/never.txt: is not in this backup" in job["error"]["message"]
    assert world.tree() == before


async def test_what_came_back_otherwise_than_it_was_is_named_and_the_site_stays(
    world: Backed, restic: RecordedRestic
) -> None:
    backup = await world.backup()
    give(world.home, "public/index.html", b"new content")
    before = world.tree()

    def damage(tree: Path) -> None:
        (tree / "public" / "index.html").write_bytes(b"<h1>Adb</h1>")

    restic.damage = damage
    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))
    lines = (await world.ada.get(f"/jobs/{job['id']}/log")).json()

    assert job["status"] == "failed"
    assert any("public/index.html: has another content" in line["message"] for line in lines)
    assert world.tree() == before
    assert world.left() == []


@pytest.mark.parametrize("command", ["snapshots", "restore", "verify"])
async def test_a_restoration_that_fails_leaves_the_site_as_it_was(
    world: Backed, restic: RecordedRestic, command: str
) -> None:
    backup = await world.backup()
    give(world.home, "public/index.html", b"new content")
    before = world.tree()
    restic.before = failing(command)

    job = await world.ended(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert job["status"] == "failed"
    assert world.tree() == before
    assert world.left() == []


async def test_a_backup_is_restored_to_another_site_of_the_same_customer_alone(world: Backed) -> None:
    backup = await world.backup()
    path = f"/backups/{backup['id']}/restore"
    await world.panel.database.execute(
        "UPDATE sites SET owner_id = (SELECT owner_id FROM sites WHERE id = $1) WHERE id = $2",
        world.site,
        world.other_site,
    )

    job = await world.ended(await world.ada.post(path, {"site": str(world.other_site)}))
    await world.panel.database.execute(
        "UPDATE sites SET owner_id = (SELECT id FROM users WHERE email = 'bob@example.com') WHERE id = $1",
        world.other_site,
    )
    foreign = await world.ada.post(path, {"site": str(world.other_site)})
    by_root = await world.root.post(path, {"site": str(world.other_site)})

    other = next(home for home in (world.folder / "sites").iterdir() if home != world.home.path)
    restored = other / "public" / "index.html"
    assert job["status"] == "succeeded"
    assert restored.read_bytes() == b"<h1>Ada</h1>"
    assert restored.stat().st_uid == other.stat().st_uid
    assert foreign.status_code == 404
    assert by_root.status_code == 409


async def test_a_restoration_that_a_kill_cut_short_is_undone_by_the_next_start(
    world: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a core that was killed between two moves, the journal and what was moved are there."""
    before = world.tree()
    places = Places(HostFolders(world.folder))
    staging = places.make_staging(4711)
    for name in ("public", "fresh"):
        (staging / "new" / "site" / name).mkdir(parents=True)
    (staging / "new" / "site" / "public" / "index.html").write_bytes(b"half")

    class Killed(BaseException):
        pass

    exchange = kernel.exchange

    def killed(source: int, old: bytes, target: int, new: bytes) -> None:
        exchange(source, old, target, new)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "exchange", killed)
        with pytest.raises(Killed):
            switch(world.home.path, world.home.uid, staging, staging / "new" / "site", {".svc-tmp", "tmp"})
    between = world.tree()

    await world.round()

    assert between["public/index.html"][2] == b"half"
    assert "private/secret.txt" not in between
    assert world.tree() == before
    assert world.left() == []


@pytest.mark.parametrize("part", [{"path": "public/large.bin"}, {}])
async def test_a_restoration_for_which_there_is_no_room_is_refused_before_anything_is_fetched(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch, part: dict[str, str]
) -> None:
    give(world.home, "public/large.bin", bytes(1 << 20))
    backup = await world.backup()
    before = world.tree()
    monkeypatch.setattr(Places, "free_bytes", lambda places: SPARE_BYTES + (1 << 19))
    path = f"/backups/{backup['id']}/restore"

    refused = await world.ended(await world.ada.post(path, part))
    small = await world.ended(await world.ada.post(path, {"path": "public/index.html"}))

    assert refused["status"] == "failed"
    assert refused["error"]["message"].startswith("The restoration may need 269,4")
    assert next(step["name"] for step in refused["steps"] if step["status"] == "failed") == "reserve_disk"
    assert small["status"] == "succeeded"
    assert world.tree() == before
    assert world.left() == []
