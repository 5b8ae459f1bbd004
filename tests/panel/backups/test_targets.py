"""Where copies of backups go, the keys of repositories, and what is left when a site or an account goes."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from uuid import UUID

import pytest

from svc.panel.backups import targets as backup_targets
from svc_actors.panel.backups import Places
from svc_webhost.accounts import AccountError
from tests.support.panel_sites import RecordedAccounts, nothing
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed

BUCKET = {
    "name": "bucket",
    "endpoint": "https://s3.example.com",
    "bucket": "backups",
    "access_key": "AKIAEXAMPLE",
    "secret_key": "a-secret-of-the-bucket",
}
SERVER = {
    "name": "nas",
    "host": "nas.example.com",
    "user": "backup",
    "path": "/srv/backups",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJvd",
}


async def test_every_backup_is_copied_to_every_target(world: Backed, restic: RecordedRestic, tmp_path: Path) -> None:
    disk = tmp_path.parent / f"{tmp_path.name}-disk"
    disk.mkdir()
    for path, wanted in (("local", {"name": "disk", "path": str(disk)}), ("sftp", SERVER), ("s3", BUCKET)):
        answer = await world.root.post(f"/backups/targets/{path}", wanted)
        assert answer.status_code == 201, answer.text

    backup = await world.backup()

    kinds = sorted(location.partition(":")[0] for location in restic.repositories if not location.startswith("/"))
    assert [(copy["target"], copy["error"]) for copy in backup["copies"]] == [
        ("bucket", None),
        ("disk", None),
        ("nas", None),
    ]
    assert kinds == ["s3", "sftp"]
    assert [len(held) for held in restic.repositories.values()] == [1, 1, 1, 1]


async def test_a_target_that_fails_is_told_and_the_backup_is_complete_here(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.root.post("/backups/targets/sftp", SERVER)
    await world.root.post("/backups/targets/s3", BUCKET)
    restic.before = failing("copy", at="sftp:")

    backup = await world.backup()
    targets = {row["name"]: row for row in (await world.root.get("/backups/targets")).json()}

    assert backup["status"] == "completed"
    assert [(copy["target"], copy["error"] is None) for copy in backup["copies"]] == [("bucket", True), ("nas", False)]
    assert await world.events() == ["backup.completed", "backup.remote_failed"]
    assert "the disk says no" in targets["nas"]["last_error"]
    assert targets["bucket"]["last_error"] is None


async def test_the_next_backup_brings_a_target_what_it_was_away_for(world: Backed, restic: RecordedRestic) -> None:
    early = await world.backup()
    await world.root.post("/backups/targets/s3", BUCKET)
    restic.before = failing("copy", at="s3:")
    missed = await world.backup()
    restic.before = failing("copy", at="nowhere")

    last = await world.backup()
    found = [(await world.ada.get(f"/backups/{each['id']}")).json() for each in (early, missed, last)]

    bucket = next(location for location in restic.repositories if location.startswith("s3:"))
    assert missed["copies"][0]["error"] is not None
    assert [[copy["error"] for copy in each["copies"]] for each in found] == [[None]] * 3
    assert restic.held(bucket) == sorted((f"backup-{each['id']}", "complete") for each in found)
    assert (await world.events()).count("backup.remote_failed") == 1


async def test_secrets_of_targets_are_sealed_and_never_shown(world: Backed) -> None:
    server = (await world.root.post("/backups/targets/sftp", SERVER)).json()
    bucket = (await world.root.post("/backups/targets/s3", BUCKET)).text
    listed = (await world.root.get("/backups/targets")).text
    stored = str([dict(row) for row in await world.panel.database.fetch("SELECT * FROM backup_targets")])
    audited = str(await world.panel.audit())

    assert server["public_key"].startswith("ssh-ed25519 ")
    assert all("a-secret-of-the-bucket" not in text for text in (bucket, listed, stored, audited))
    assert all("PRIVATE KEY" not in text for text in (listed, stored, audited))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("sftp", {"host": "-oProxyCommand=touch"}),
        ("sftp", {"user": "-l"}),
        ("sftp", {"user": "a b"}),
        ("sftp", {"path": "/srv/../etc"}),
        ("sftp", {"host_key": "ssh-ed25519 AAAA\nProxyCommand"}),
        ("s3", {"endpoint": "file:///etc"}),
        ("s3", {"bucket": "a/b"}),
        ("s3", {"prefix": "../x"}),
        ("local", {"name": "x", "path": "relative"}),
        ("local", {"name": "x", "path": "/no/such/folder"}),
    ],
)
async def test_what_could_be_an_argument_or_a_way_out_is_refused(
    world: Backed, path: str, change: dict[str, str]
) -> None:
    wanted = {"sftp": SERVER, "s3": BUCKET, "local": {}}[path] | change

    answer = await world.root.post(f"/backups/targets/{path}", wanted)

    assert answer.status_code == 400, answer.text
    assert (await world.root.get("/backups/targets")).json() == []


async def test_a_target_on_a_mount_that_hangs_is_refused_and_holds_no_transaction(
    world: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path.parent / f"{tmp_path.name}-mount"
    disk.mkdir()
    hung, answers = threading.Event(), threading.Event()

    def hang(_: Path) -> None:
        hung.set()
        answers.wait(60)

    monkeypatch.setattr(Path, "touch", hang)
    monkeypatch.setattr(backup_targets, "_MARK_SECONDS", 0.2)
    try:
        answer = await world.root.post("/backups/targets/local", {"name": "mount", "path": str(disk)})
        open_ones = await world.panel.database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in tr%'"
        )
    finally:
        answers.set()
    assert hung.is_set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert open_ones == 0
    assert (await world.root.get("/backups/targets")).json() == []


async def test_targets_and_keys_are_administrators_and_an_export_is_audited(world: Backed) -> None:
    await world.backup()

    refused = [await world.ada.get("/backups/keys"), await world.ada.get("/backups/targets")]
    (key,) = (await world.root.get("/backups/keys")).json()
    exported = (await world.root.post(f"/backups/keys/{key['id']}/export")).json()
    rows = [row for row in await world.panel.audit() if row["operation"] == "backup.export_key"]
    stored = str([dict(row) for row in await world.panel.database.fetch("SELECT * FROM backup_repositories")])

    assert [answer.status_code for answer in refused] == [403, 403]
    assert len(exported["key"]) >= 32
    assert exported["key"] not in stored
    assert [(row["target_name"], row["outcome"]) for row in rows] == [("ada.example.com", "ok")]


async def test_a_site_is_backed_up_before_it_is_deleted_and_can_be_restored_to_another(world: Backed) -> None:
    job = await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    (backup,) = (await world.ada.get("/backups")).json()["items"]
    await world.panel.database.execute(
        "UPDATE sites SET owner_id = (SELECT id FROM users WHERE email = 'ada@example.com') WHERE id = $1",
        world.other_site,
    )

    nowhere = await world.ada.post(f"/backups/{backup['id']}/restore")
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {"site": str(world.other_site)}))

    restored = [
        home / "public" / "index.html" for home in (world.folder / "sites").iterdir() if home != world.home.path
    ]
    assert job["steps"][0]["name"] == "final_backup"
    assert (backup["site_id"], backup["cause"], backup["status"]) == (None, "final", "completed")
    assert backup["kept_until"] is not None
    assert nowhere.status_code == 409
    assert restored[0].read_bytes() == b"<h1>Ada</h1>"


async def test_a_final_backup_that_fails_ends_the_deletion_and_can_be_refused(
    world: Backed, restic: RecordedRestic
) -> None:
    restic.before = failing("backup")
    before = world.tree()

    failed = await world.ended(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    kept = world.tree()
    refused = {"confirm": "ada.example.com", "final_backup": False}
    deleted = await world.ended(await world.ada.delete(f"/sites/{world.site}", refused))

    assert (failed["status"], kept) == ("failed", before)
    assert "nothing of it was removed" in failed["error"]["message"]
    assert deleted["status"] == "succeeded"


async def refused_removal(step: str) -> None:
    if step == "remove":
        raise AccountError("userdel: cannot lock /etc/passwd")


async def test_a_site_that_was_put_back_after_a_failed_deletion_is_backed_up_by_the_next_one(world: Backed) -> None:
    accounts = world.panel.host.accounts
    assert isinstance(accounts, RecordedAccounts)
    accounts.before = refused_removal
    failed = await world.ended(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    accounts.before = lambda step: nothing()
    again = await world.ada.post("/sites", {"domain": "ada.example.com", "type": "static"})
    (world.home.path / "public" / "index.html").write_bytes(b"<h1>Ada again</h1>")

    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    found = (await world.ada.get("/backups")).json()["items"]

    assert (failed["status"], again.status_code) == ("failed", 201), again.text
    assert [(backup["cause"], backup["status"]) for backup in found] == [("final", "completed")] * 2
    assert found[0]["created_at"] > found[1]["created_at"]


async def test_what_is_kept_of_a_deleted_site_goes_after_its_time(world: Backed) -> None:
    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    repositories = world.folder / "backups" / "repositories"
    there = list(repositories.iterdir())

    await world.round()
    early = list(repositories.iterdir())
    await world.panel.database.execute("UPDATE backup_repositories SET kept_until = now() - interval '1 second'")
    await world.round()

    assert early == there != []
    assert list(repositories.iterdir()) == []
    assert (await world.ada.get("/backups")).json()["total"] == 0


async def test_one_repository_that_cannot_be_removed_keeps_no_other_that_is_due(
    world: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [UUID(int=number) for number in (1, 2, 3)]
    for repository in ids:
        (world.folder / "backups" / "repositories" / str(repository)).mkdir(parents=True)
        await world.panel.database.execute(
            """INSERT INTO backup_repositories (id, owner_id, domain, sealed_key, kept_until)
               SELECT $1, id, 'former.example.com', '', now() - interval '1 second'
               FROM users WHERE email = 'ada@example.com'""",
            repository,
        )
    remove = Places.remove_repository

    def refused(places: Places, repository_id: UUID) -> None:
        if repository_id == ids[0]:
            raise OSError(errno.EPERM, "Operation not permitted")
        remove(places, repository_id)

    monkeypatch.setattr(Places, "remove_repository", refused)
    with pytest.raises(OSError, match="not permitted"):
        await world.round()

    left = [path.name for path in (world.folder / "backups" / "repositories").iterdir()]
    assert left == [str(ids[0])]
    known = await world.panel.database.fetch("SELECT id FROM backup_repositories WHERE site_id IS NULL")
    assert [row["id"] for row in known] == ids[:1]


async def test_the_backups_of_former_sites_go_with_the_account(world: Backed) -> None:
    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    person = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")

    job = await world.ended(await world.root.delete(f"/users/{person}"))

    assert job["status"] == "succeeded", job
    assert list((world.folder / "backups" / "repositories").iterdir()) == []
    assert (await world.root.get("/backups")).json()["total"] == 0


async def test_a_backup_for_which_there_is_no_room_is_not_begun(world: Backed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Places, "free_bytes", lambda places: 1 << 20)

    job = await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))

    failing_step = next(step for step in job["steps"] if step["status"] == "failed")
    assert failing_step["name"] == "reserve_disk"
    assert "1,048,576 are free" in job["error"]["message"]
    assert (await world.newest())["status"] == "failed"
    assert world.left() == []
