"""Uploads that come to the live site while it is pushed to stay, whatever becomes of the push."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from svc_actors.panel.staging.undoing import PushRollback
from svc_webhost.site_tasks import Take
from svc_webhost.staging import trees
from tests.panel.staging.shops import Shop, home_of, put, upload
from tests.support.site_tasks import Task


async def test_uploads_that_come_while_tables_are_loaded_stay(shop: Shop) -> None:
    await shop.staged()
    await shop.work()

    async def meanwhile(method: str) -> None:
        if method == "dump":
            upload(shop, "meanwhile.png", "2026 picture")
            upload(shop, "old.png", "edited picture", later=3600)

    shop.tables.before = meanwhile
    job = await shop.push()

    files, _ = shop.live()
    assert job["status"] == "succeeded", job
    assert files["index.php"] == "new index"
    assert files["wp-content/uploads/2026/meanwhile.png"] == "2026 picture"
    assert files["wp-content/uploads/old.png"] == "edited picture"
    assert shop.left() == []


async def test_of_an_upload_that_both_have_the_newest_stays(shop: Shop) -> None:
    upload(shop, "both.png", "of the copy's time")
    upload(shop, "copied.png", "of the copy's time")
    await shop.staged()
    await shop.work()
    upload(shop, "both.png", "edited on the site", later=3600)
    number = (await shop.copy())["number"]
    put(home_of(shop.world, number), number, "wp-content/uploads/2026/copied.png", "edited in the copy")

    await shop.push()

    files, _ = shop.live()
    assert files["wp-content/uploads/2026/both.png"] == "edited on the site"
    assert files["wp-content/uploads/2026/copied.png"] == "edited in the copy"


async def test_uploads_stay_where_the_copy_has_none_at_all(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    shutil.rmtree(home_of(shop.world, (await shop.copy())["number"]) / "public/wp-content/uploads")

    await shop.push()

    files, _ = shop.live()
    assert files["index.php"] == "new index"
    assert files["wp-content/uploads/old.png"] == "old picture"


async def test_uploads_that_come_to_a_push_that_is_undone_stay(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    number = (await shop.copy())["number"]
    put(home_of(shop.world, number), number, "wp-content/uploads/2026/11/only-in-copy.png", "of the copy")
    put(home_of(shop.world, number), number, "wp-content/uploads/2025/only-in-copy.png", "of the copy")
    before = shop.live()

    async def act(task: Task, take: Take) -> int:
        if shop.live()[0]["index.php"] != "new index":
            return 200
        upload(shop, "meanwhile.png", "2026 picture")
        upload(shop, "old.png", "edited picture", later=3600)
        upload(shop, "11/meanwhile.png", "November's picture")
        return 500

    shop.tasks.act = act
    job = await shop.push()

    came = {
        "wp-content/uploads/2026/meanwhile.png": "2026 picture",
        "wp-content/uploads/2026/11/meanwhile.png": "November's picture",
        "wp-content/uploads/old.png": "edited picture",
    }
    assert job["status"] == "failed"
    assert shop.live() == ({**before[0], **came}, before[1])
    assert not (shop.home / "public/wp-content/uploads/2025").exists()


async def test_uploads_stay_when_they_cannot_be_merged_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.staged()
    await shop.work()
    real, calls = trees.merge, 0

    def full(*words: Any, **named: Any) -> trees.CopyCounts:
        nonlocal calls
        calls += 1
        if calls == 1:
            counted = real(*words, **named)
            # Written by path by a request that began before the exchange.
            upload(shop, "late.png", "late picture", home=Path(words[0]))
            return counted
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*words, **named)

    monkeypatch.setattr(trees, "merge", full)
    job = await shop.push()
    kept = shop.left()
    await PushRollback(shop.world.panel.services.staging).round()

    assert job["steps"][-1]["status"] == "failed"
    assert kept != []
    assert shop.live()[0]["index.php"] == "new index"
    assert shop.live()[0]["wp-content/uploads/2026/late.png"] == "late picture"
    assert shop.left() == []
