"""Manifests are written after changes and once a day, to every target, and opened by the recovery key alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from svc_actors.panel.recovery.key import WrongKey, new_key
from svc_actors.panel.recovery.manifest import DamagedManifest, opened_manifest
from svc_actors.panel.recovery.writing import KEY_ALERT, WITHOUT, alert_of
from tests.support.lost_server import Hosting, Server
from tests.support.restic import RecordedRestic, failing


@pytest.fixture
async def server(hosting: Hosting, panel_database_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    async with hosting.open(panel_database_url, tmp_path / "server") as server:
        yield server


async def alerts(server: Server) -> set[str]:
    rows = await server.database.fetch("SELECT key FROM alerts WHERE closed_at IS NULL AND key LIKE 'recovery-%'")
    return {row["key"] for row in rows}


def stored(restic: RecordedRestic, disk: Path) -> list[bytes]:
    held = restic.repositories.get(str(disk / "svc-recovery"), {})
    return [restic.trees[snapshot]["file"][1] for snapshot in held]


async def test_targets_without_a_key_raise_an_alert_and_get_no_manifest(
    server: Server, restic: RecordedRestic, disk: Path
) -> None:
    await server.target(disk)
    await server.manifests().round()
    without = await alerts(server), stored(restic, disk)
    await server.key()
    again = await server.root.post("/recovery/key", {})
    await server.manifests().round()

    assert without == ({KEY_ALERT}, [])
    assert again.status_code == 409
    assert await alerts(server) == set()
    assert len(stored(restic, disk)) == 1


async def test_one_manifest_follows_several_changes_and_none_follows_none(
    server: Server, restic: RecordedRestic, disk: Path
) -> None:
    await server.target(disk)
    await server.key()
    manifests = server.manifests()
    await manifests.round()
    await manifests.round()
    unchanged = len(stored(restic, disk))
    for name in ("small", "large"):
        plan = await server.root.post("/plans", {"name": name})
        assert plan.status_code == 201, plan.text
    await manifests.round()
    changed = len(stored(restic, disk))
    await server.database.execute("UPDATE recovery_manifests SET written_at = now() - interval '25 hours'")
    await manifests.round()

    assert (unchanged, changed, len(stored(restic, disk))) == (1, 2, 3)


async def test_a_target_that_fails_is_told_and_tried_again_until_it_has_its_manifest(
    server: Server, restic: RecordedRestic, disk: Path
) -> None:
    target = await server.target(disk)
    await server.key()
    manifests = server.manifests()
    restic.before = failing("init", at=str(disk))
    await manifests.round()
    failed, [shown] = await alerts(server), (await server.recovery())["manifests"]
    job = await server.job((await server.root.post("/recovery/manifest")).json()["id"])
    restic.before = RecordedRestic().before
    await manifests.round()
    too_early = stored(restic, disk)
    await server.database.execute("UPDATE recovery_manifests SET tried_at = now() - interval '6 minutes'")
    await manifests.round()
    [there] = (await server.recovery())["manifests"]

    assert failed == {alert_of(UUID(target))}
    assert "the disk says no" in shown["error"]
    assert shown["overdue"]
    assert job["status"] == "failed"
    assert too_early == []
    assert (there["error"], there["overdue"]) == (None, False)
    assert await alerts(server) == set()


async def test_after_a_rotation_the_old_key_opens_nothing_that_is_there(
    server: Server, restic: RecordedRestic, disk: Path
) -> None:
    await server.target(disk)
    old = await server.key()
    await server.manifests().round()
    rotated = (await server.root.post("/recovery/key", {"rotate": True})).json()["recovery_key"]
    await server.manifests().round()

    [manifest] = stored(restic, disk)
    found, dump = opened_manifest(manifest, rotated)
    assert found.hostname
    assert dump
    with pytest.raises(WrongKey):
        opened_manifest(manifest, old)


async def test_no_secret_is_readable_in_a_manifest_or_in_the_database(
    server: Server, restic: RecordedRestic, disk: Path
) -> None:
    await server.target(disk)
    key = await server.key()
    await server.manifests().round()
    [manifest] = stored(restic, disk)
    row = await server.database.fetchone("SELECT recovery_key::text AS told FROM recovery_key")
    sealing = (server.folder / "secret.key").read_bytes()

    assert key not in row["told"]
    assert sealing not in manifest
    assert sealing.hex().encode() not in manifest
    assert b"root@example.com" not in manifest


@pytest.mark.parametrize("cut", [1, 20, 1000])
async def test_a_manifest_that_was_cut_or_altered_does_not_open(
    server: Server, restic: RecordedRestic, disk: Path, cut: int
) -> None:
    await server.target(disk)
    key = await server.key()
    await server.manifests().round()
    [manifest] = stored(restic, disk)
    altered = manifest[:-cut] + bytes([manifest[-cut] ^ 1]) + manifest[len(manifest) - cut + 1 :]

    for damaged in (manifest[:-cut], altered):
        with pytest.raises(DamagedManifest):
            opened_manifest(damaged, key)
    with pytest.raises(DamagedManifest):
        opened_manifest(b"no manifest", key)


async def test_what_a_manifest_leaves_out_is_missed_by_nothing_in_it(server: Server) -> None:
    """A row that refers to one that was left out would keep the whole dump from being loaded."""
    rows = await server.database.fetch(
        """SELECT conrelid::regclass::text AS inside, confrelid::regclass::text AS outside FROM pg_constraint
           WHERE contype = 'f' AND confrelid::regclass::text = ANY($1) AND NOT conrelid::regclass::text = ANY($1)""",
        list(WITHOUT),
    )
    tables = {row["tablename"] for row in await server.database.fetch("SELECT tablename FROM pg_tables")}

    assert [tuple(row.values()) for row in rows] == []
    assert set(WITHOUT) <= tables


def test_a_recovery_key_is_read_as_people_type_it() -> None:
    key = new_key()

    assert key.wrapped.opened(f" {key.recovery_key.lower().replace('-', ' ')} ") == key.data_key
    with pytest.raises(WrongKey):
        key.wrapped.opened(new_key().recovery_key)
