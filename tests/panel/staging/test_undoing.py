"""A push that a core did not end is undone by the next one, before anything else happens to the site."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from svc_actors.panel.jobs import JobStatus
from svc_actors.store import Database
from svc_webhost.databases import DatabaseError
from svc_webhost.site_tasks import Take
from tests.panel.sites.world import world_of
from tests.panel.staging.shops import DOMAIN, PUSHED, failing, upload
from tests.panel.staging.shops import shop as made_shop
from tests.panel.wordpress.blogs import databases_of
from tests.support.panel import open_panel, recorded_host
from tests.support.recorded_databases import undisturbed
from tests.support.site_tasks import Task


@pytest.mark.drawn(3)
@pytest.mark.parametrize("at", ["has_posts", "dump", "keep_options", "swap", "swapped", "visited", "recorded"])
async def test_the_next_core_undoes_a_push_that_was_killed_unless_it_was_recorded(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    # A core that is killed waits for nobody.
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.1)
    host = recorded_host()
    async with world_of(panel_database, tmp_path, host=host) as world:
        shop = await made_shop(world)
        await shop.staged()
        await shop.work()
        old, reached = shop.live(), trio.Event()

        async def stop(method: str) -> None:
            """As if the core were killed: whatever it would do about it does not come to pass."""
            if reached.is_set() and method in ("swap_back", "databases"):
                raise DatabaseError("The core is dead.")
            if method == at:
                reached.set()
                await trio.sleep_forever()

        async def act(task: Task, take: Take) -> int:
            if at == "visited" and shop.live()[0]["index.php"] == "new index":
                upload(shop, "meanwhile.png", "2026 picture")
                old[0]["wp-content/uploads/2026/meanwhile.png"] = "2026 picture"
                await stop("visited")
            return 200

        shop.tables.before, shop.tasks.act = stop, act
        if at == "recorded":
            databases_of(world).before = _at_drop(reached)
        await shop.by.post(f"{shop.path}/push", {"confirm": DOMAIN})
        with trio.fail_after(30):
            await reached.wait()

    shop.tables.before, shop.tasks.act = failing("never"), _answers
    if at == "recorded":
        databases_of(world).before = undisturbed
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        root = await panel.administrator("other@example.com")
        [job] = [each for each in (await root.get("/jobs")).json()["items"] if each["kind"] == "staging.push"]
        shown = (await root.get(shop.path)).json()
        await panel.step("pushes to undo")
        left, live = shop.left(), shop.live()

    assert job["error"]["message"] == "interrupted: core restarted"
    assert shown["status"] == "ready"
    assert left == []
    if at == "recorded":
        assert live[1] == PUSHED
        assert live[0]["index.php"] == "new index"
        assert shown["reason"] is None
        assert shown["pushed_at"] is not None
    else:
        assert live == old
        assert shown["reason"] == "The last push was not done: interrupted: core restarted"
        assert shown["pushed_at"] is None


async def test_no_job_of_a_site_begins_before_its_push_is_undone(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.1)
    host = recorded_host()
    async with world_of(panel_database, tmp_path, host=host) as world:
        shop = await made_shop(world)
        await shop.staged()
        await shop.work()
        old, reached = shop.live(), trio.Event()

        async def stop(method: str) -> None:
            if reached.is_set() and method == "swap_back":
                raise DatabaseError("The database server does not answer.")

        async def act(task: Task, take: Take) -> int:
            if shop.live()[0]["index.php"] == "new index":
                reached.set()
                await trio.sleep_forever()
            return 200

        shop.tables.before, shop.tasks.act = stop, act
        await shop.by.post(f"{shop.path}/push", {"confirm": DOMAIN})
        with trio.fail_after(30):
            await reached.wait()

    shop.tasks.act = _answers
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        root = await panel.administrator("other@example.com")
        shown = (await root.get(shop.path)).json()
        refused = await root.post(f"{shop.path}/refresh", {})
        [backup] = [(await root.post(f"/sites/{shop.site['id']}/backups", {})).json()]
        elsewhere = (await root.post("/sites", {"domain": "other.example", "type": "static"})).json()
        other = (await root.post(f"/sites/{elsewhere['id']}/backups", {})).json()
        await panel.job_ended(other["id"])
        await panel.step("pushes to undo")
        waiting = (await root.get(f"/jobs/{backup['id']}")).json()
        shop.tables.before = failing("never")
        await panel.step("pushes to undo")
        done = await panel.job_ended(backup["id"])
        after = (await root.get(shop.path)).json()
        live = shop.live()

    assert (shown["status"], shown["reason"]) == ("undoing", "The last push was not done: interrupted: core restarted")
    assert refused.status_code == 409
    assert "as soon as the database server answers" in refused.json()["error"]["hint"]
    assert waiting["status"] == "queued"
    assert done.status is JobStatus.SUCCEEDED
    assert (after["status"], after["reason"]) == ("ready", shown["reason"])
    assert live == old
    assert shop.left() == []


def _at_drop(reached: trio.Event) -> Callable[[str], Awaitable[None]]:
    async def before(method: str) -> None:
        if method == "drop_database":
            reached.set()
            await trio.sleep_forever()

    return before


async def _answers(task: Task, take: Take) -> int:
    await trio.lowlevel.checkpoint()
    return 200
