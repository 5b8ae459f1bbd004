"""Backups of a site that has lost its files: marked, told, and no reason to remove the good ones."""

from __future__ import annotations

import os
import shutil
from typing import Any, cast

from tests.support.panel_sites import RecordedAccounts
from tests.support.restic import RecordedRestic
from tests.support.site_backups import Backed
from tests.support.site_files import give


async def reduced(world: Backed) -> list[dict[str, Any]]:
    found = (await world.root.get("/alerts")).json()["items"]
    return [each for each in found if each["key"].startswith("backup-files:")]


def fill(world: Backed) -> None:
    for number in range(20):
        give(world.home, f"public/{number}.txt", b"content")


def empty(world: Backed) -> None:
    for path in [*world.home.path.glob("public/*"), *world.home.path.glob("private/*")]:
        path.unlink()


async def test_backups_of_an_emptied_site_are_marked_and_leave_the_good_ones(
    world: Backed, restic: RecordedRestic
) -> None:
    fill(world)
    good = [await world.backup() for _ in range(3)]
    empty(world)

    bad = [await world.backup() for _ in range(6)]
    listed = {each["id"]: each for each in (await world.root.get("/backups")).json()["items"]}
    opened = await reduced(world)

    assert {each["id"] for each in good} < set(listed)
    assert [(each["files"], each["files_before"]) for each in bad] == [(0, good[0]["files"])] * 6
    assert len(listed) == 3 + 3
    assert len(opened) == 1
    assert "has 0 files, and an earlier one has 23" in opened[0]["message"]


async def test_the_alert_closes_when_the_files_are_back(world: Backed, restic: RecordedRestic) -> None:
    fill(world)
    await world.backup()
    empty(world)
    await world.backup()
    fill(world)

    back = await world.backup()

    assert back["files_before"] is None
    assert await reduced(world) == []


async def test_a_site_that_was_made_smaller_on_purpose_is_backed_up_as_usual_once_that_was_acknowledged(
    world: Backed, restic: RecordedRestic
) -> None:
    fill(world)
    await world.backup()
    empty(world)
    await world.backup()
    (opened,) = await reduced(world)
    await world.root.post(f"/alerts/{opened['id']}/ack")

    await world.backup()
    listed = (await world.root.get("/backups")).json()["items"]

    assert [each["files_before"] for each in listed] == [None] * 3
    assert await reduced(world) == []


async def test_a_site_that_loses_half_of_its_files_is_no_alert(world: Backed, restic: RecordedRestic) -> None:
    fill(world)
    await world.backup()
    for number in range(15):
        (world.home.path / f"public/{number}.txt").unlink()

    after = await world.backup()

    assert after["files_before"] is None
    assert await reduced(world) == []


async def test_a_site_whose_folder_is_gone_is_restored(world: Backed, restic: RecordedRestic) -> None:
    backup = await world.backup()
    before = world.tree()
    shutil.rmtree(world.home.path)

    async def make(step: str) -> None:
        if step == "make":  # As the server's own accounts do.
            world.home.path.mkdir(mode=0o710)
            os.chown(world.home.path, world.home.uid, world.home.uid)

    cast(RecordedAccounts, world.panel.host.accounts).before = make
    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {}))

    assert world.tree() == before
