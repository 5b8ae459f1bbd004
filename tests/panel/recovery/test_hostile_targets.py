"""Whoever may write at a target may write anything there: a new server believes none of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from svc_actors.panel.recovery.manifest import DamagedManifest, opened_manifest
from tests.support.lost_server import Hosting
from tests.support.restic import RecordedRestic

FOREIGN = (
    {"at": "2026-11-25T10:00:00"},
    {"at": "0001-01-01T00:00:00+14:00"},
    {"at": "tomorrow"},
    {"host": "\x1b]0;owned\x07"},
    {"host": "h" * 300},
    {"host": ""},
    {"server": "nobody"},
    {"target": "../../etc"},
    {"key": "*"},
)


async def a_manifest(hosting: Hosting, url: str, folder: Path, disk: Path) -> str:
    """The key of the server that has written it and is gone."""
    async with hosting.open(url, folder) as server:
        await server.target(disk)
        key = await server.key()
        await server.done(await server.root.post("/recovery/manifest"))
    return key


def tagged(tags: tuple[str, ...], other: dict[str, str]) -> tuple[str, ...]:
    said = dict(tag.split("-", 1) for tag in tags) | other
    return tuple(f"{name}-{value}" for name, value in said.items())


@pytest.mark.parametrize(
    "other",
    [
        {"at": "2031-01-01T00:00:00.000000Z"},
        {"host": "another.example.com"},
        {"server": "5e2f7a5e-5f0c-4d52-9a53-3d1f4d4b1a11"},
        {"target": "5e2f7a5e-5f0c-4d52-9a53-3d1f4d4b1a11"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_a_manifest_that_is_given_out_as_another_is_refused(
    hosting: Hosting,
    restic: RecordedRestic,
    panel_database_url: str,
    new_url: str,
    tmp_path: Path,
    disk: Path,
    other: dict[str, str],
) -> None:
    key = await a_manifest(hosting, panel_database_url, tmp_path / "old", disk)
    held = restic.repositories[str(disk / "svc-recovery")]
    [snapshot] = held
    held[snapshot] = tagged(held[snapshot], other)

    async with hosting.open(new_url, tmp_path / "new") as server:
        wanted: dict[str, Any] = {"target": await server.target(disk), "recovery_key": key}
        discovered = await server.root.post("/recovery/discover", wanted)
        run = await server.job((await server.root.post("/recovery/run", {**wanted, "replace": True})).json()["id"])
        reopened = server.reopen.is_set()

    assert discovered.status_code == 409
    assert "does not match its name at the target" in discovered.text
    assert "does not match its name at the target" in run["error"]["message"]
    assert not reopened
    assert not (tmp_path / "new" / "recovery" / "staged").exists()


async def test_snapshots_of_another_form_hide_no_manifest_and_stop_none(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    await a_manifest(hosting, panel_database_url, tmp_path / "old", disk)
    held = restic.repositories[str(disk / "svc-recovery")]
    [tags] = held.values()
    for number, other in enumerate(FOREIGN):
        held[f"{number:064x}"] = tagged(tags, other)
    held["f" * 64] = ()

    async with hosting.open(new_url, tmp_path / "new") as server:
        found = await server.root.post("/recovery/discover", {"target": await server.target(disk)})
        await server.key()
        await server.done(await server.root.post("/recovery/manifest"))

    [only] = found.json()["servers"]
    assert len(only["manifests"]) == 1


async def test_a_file_that_asks_for_more_memory_than_a_manifest_does_is_none(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, tmp_path: Path, disk: Path
) -> None:
    key = await a_manifest(hosting, panel_database_url, tmp_path / "old", disk)
    [snapshot] = restic.repositories[str(disk / "svc-recovery")]
    line, _, sealed = restic.trees[snapshot]["file"][1].partition(b"\n")
    header = json.loads(line)
    header["key"]["cost"] = 20

    with pytest.raises(DamagedManifest, match="not the manifest of a server"):
        opened_manifest(json.dumps(header).encode() + b"\n" + sealed, key)
