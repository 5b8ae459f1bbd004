"""What a push does to the live site, what it leaves alone, and that it is undone unless it comes to its end."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases import DatabaseError
from svc_actors.host.site_tasks import Take
from svc_actors.host.staging import trees
from svc_actors.panel.jobs import JobStatus
from svc_actors.panel.staging import selection
from svc_actors.panel.staging.pushing import look
from svc_actors.panel.staging.records import Baseline, pair_of
from svc_actors.panel.staging.selection import Part, Seen
from svc_actors.panel.staging.undoing import Undoing
from svc_actors.store import Database
from tests.panel.sites.world import world_of
from tests.panel.staging.shops import DOMAIN, TABLES, Shop, home_of, put
from tests.panel.staging.shops import shop as made_shop
from tests.panel.wordpress.blogs import databases_of
from tests.support.panel import open_panel, recorded_host
from tests.support.recorded_databases import undisturbed
from tests.support.site_tasks import Task

PUSHED = {**TABLES, "wp_options": "new options", "wp_posts": "new posts", "wp_postmeta": "new meta"}


def upload(shop: Shop, name: str, text: str, *, later: int = 0, home: Path | None = None) -> None:
    """As the live site has it: in a folder of the year, but for `old.png`."""
    name = f"wp-content/uploads/{name if name == 'old.png' else f'2026/{name}'}"
    if home is None:
        put(shop.home, shop.site["number"], name, text)
        file = shop.home / "public" / name
    else:
        file = home / name.removeprefix("wp-content/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        uid = SiteAccount(shop.site["number"]).uid
        for each in (file.parent, file):
            os.chown(each, uid, uid)
    if later:
        seconds = file.stat().st_mtime + later
        os.utime(file, (seconds, seconds))


def failing(at: str) -> Callable[[str], Awaitable[None]]:
    async def before(method: str) -> None:
        if method == at:
            raise DatabaseError("The database server does not answer.")

    return before


async def test_what_is_usual_is_replaced_and_what_visitors_write_is_not(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    put(shop.home, shop.site["number"], "wp-content/uploads/later.png", "later picture")

    job = await shop.push()

    files, tables = shop.live()
    assert job["status"] == "succeeded", job
    assert (files["index.php"], files["wp-content/themes/shop/style.css"]) == ("new index", "new style")
    assert files["wp-config.php"] == "live configuration"
    assert (files["wp-content/uploads/old.png"], files["wp-content/uploads/later.png"]) == (
        "old picture",
        "later picture",
    )
    assert files["wp-content/cache/page.html"] == "cached"
    assert tables == PUSHED
    assert shop.left() == []
    shown = (await shop.by.get(shop.path)).json()
    assert (shown["status"], shown["reason"]) == ("ready", None)
    assert shown["pushed_at"] is not None


async def test_a_backup_is_made_before(shop: Shop) -> None:
    await shop.staged()

    await shop.push()

    [backup] = (await shop.by.get("/backups")).json()["items"]
    assert (backup["status"], backup["cause"]) == ("completed", "manual")


async def test_a_backup_that_fails_leaves_the_site_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    await shop.staged()
    await shop.work()
    before = shop.live()

    async def fail(command: str, location: str) -> None:
        if command == "backup":
            raise OSError("No space left on device")

    monkeypatch.setattr(shop.world.panel.host.restic, "before", fail)
    job = await shop.push()

    assert job["status"] == "failed"
    assert shop.live() == before


async def test_what_is_named_alone_is_pushed(shop: Shop) -> None:
    await shop.staged()
    await shop.work()

    await shop.push(files=["wp-content/themes"])
    first = shop.live()
    await shop.push(tables=["wp_options"])

    assert first[0]["wp-content/themes/shop/style.css"] == "new style"
    assert first[0]["index.php"] == "old index"
    assert first[1] == TABLES
    assert shop.live()[1] == {**TABLES, "wp_options": "new options"}
    assert shop.live()[0]["index.php"] == "old index"


@pytest.mark.parametrize(
    "body",
    [
        {"confirm": "other.example"},
        {"confirm": DOMAIN, "files": []},
        {"confirm": DOMAIN, "tables": []},
        {"confirm": DOMAIN, "files": ["../private"]},
        {"confirm": DOMAIN, "tables": ["wp_options; DROP"]},
        {},
    ],
)
async def test_nothing_is_begun_by_what_is_no_choice(shop: Shop, body: dict[str, Any]) -> None:
    await shop.staged()

    assert (await shop.by.post(f"{shop.path}/push", body)).status_code == 400
    assert (await shop.by.get(shop.path)).json()["status"] == "ready"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"files": ["wp-content/nothing"]}, "the copy has no wp-content/nothing"),
        ({"tables": ["wp_nothing"]}, "the copy has no wp_nothing"),
        ({"files": ["wp-config.php"]}, "the copy has no wp-config.php"),
    ],
)
async def test_what_there_is_not_is_refused(shop: Shop, chosen: dict[str, Any], said: str) -> None:
    await shop.staged()
    before = shop.live()

    job = await shop.push(**chosen)

    assert said in job["error"]["message"]
    assert shop.live() == before
    assert (await shop.by.get(shop.path)).json()["reason"].startswith("The last push was not done:")


async def test_orders_that_are_posts_hold_the_posts(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    shop.tables.posts = ["shop_order"]

    preview = (await shop.by.get(f"{shop.path}/preview")).json()
    named = await shop.push(tables=["wp_posts"])
    usual = await shop.push()

    held = {part["name"]: part["why"] for part in preview["tables"] if not part["allowed"]}
    assert set(held) == {"wp_posts", "wp_postmeta"}
    assert "shop_order" in held["wp_posts"]
    assert named["status"] == "failed"
    assert usual["status"] == "succeeded"
    assert shop.live()[1] == {**TABLES, "wp_options": "new options"}


async def test_a_change_of_the_live_site_since_is_refused_unless_it_is_accepted(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    put(shop.home, shop.site["number"], "wp-content/themes/shop/style.css", "changed meanwhile")
    database = f"{shop.site['account']}_wordpress"
    shop.tables.hold(database, {**TABLES, "wp_posts": "changed meanwhile"})
    before = shop.live()

    preview = (await shop.by.get(f"{shop.path}/preview")).json()
    refused = await shop.push()
    after = shop.live()
    without = await shop.push(tables=["wp_options"])
    accepted = await shop.push(accept_drift=True)

    assert preview["drift"] == ["wp-content/themes", "wp_posts"]
    assert "wp-content/themes, wp_posts" in refused["error"]["message"]
    assert after == before
    assert (without["status"], accepted["status"]) == ("succeeded", "succeeded")
    assert shop.live()[1] == PUSHED


async def test_what_was_pushed_is_no_change_of_the_live_site(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    await shop.push()

    assert (await shop.by.get(f"{shop.path}/preview")).json()["drift"] == []
    assert (await shop.push())["status"] == "succeeded"


async def test_a_row_that_comes_while_tables_are_swapped_undoes_the_push(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    before = shop.live()

    async def meanwhile(method: str) -> None:
        if method == "swapped":
            [old] = [name for name in shop.tables._contents if name.endswith("old")]
            shop.tables.hold(old, {**shop.tables.of(old), "wp_posts": "one more"})

    shop.tables.before = meanwhile
    job = await shop.push()

    assert "changed while it was pushed: wp_posts" in job["error"]["message"]
    assert shop.live() == (before[0], {**before[1], "wp_posts": "one more"})
    assert shop.left() == []


@pytest.mark.drawn(2)
@pytest.mark.parametrize("at", ["dump", "keep_options", "swap", "swapped"])
async def test_a_database_that_fails_on_the_way_leaves_the_site_as_it_was(shop: Shop, at: str) -> None:
    await shop.staged()
    await shop.work()
    before = shop.live()
    shop.tables.before = failing(at)

    job = await shop.push()

    assert job["status"] == "failed"
    assert shop.live() == before
    assert shop.left() == []


async def test_a_site_that_answers_no_more_gets_its_old_state_back(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    before = shop.live()

    async def act(task: Task, take: Take) -> int:
        return 500 if shop.live()[0]["index.php"] == "new index" else 200

    shop.tasks.act = act
    job = await shop.push()

    assert "answered 200 before the push and 500 after it" in job["error"]["message"]
    assert shop.live() == before


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

    def full(*words: Any, **named: Any) -> trees.Counted:
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
    await Undoing(shop.world.panel.services.staging).round()

    assert job["steps"][-1]["status"] == "failed"
    assert kept != []
    assert shop.live()[0]["index.php"] == "new index"
    assert shop.live()[0]["wp-content/uploads/2026/late.png"] == "late picture"
    assert shop.left() == []


async def test_a_cancelled_push_leaves_the_site_as_it_was(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    before, reached = shop.live(), trio.Event()

    async def act(task: Task, take: Take) -> int:
        if shop.live()[0]["index.php"] == "new index":
            reached.set()
            await trio.sleep_forever()
        return 200

    shop.tasks.act = act
    answer = await shop.by.post(f"{shop.path}/push", {"confirm": DOMAIN})
    with trio.fail_after(30):
        await reached.wait()
    await shop.by.post(f"/jobs/{answer.json()['id']}/cancel", {})
    job = await shop.ended(answer)

    assert job["status"] == "cancelled"
    assert shop.live() == before
    assert (await shop.by.get(shop.path)).json()["status"] == "ready"


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


async def test_a_server_whose_tables_cannot_be_told_apart_is_asked_nothing(shop: Shop) -> None:
    await shop.staged()
    live, copy, found = await pair_of(shop.world.panel.database, shop.site["id"])

    looked = await look(shop.world.panel.services.staging, live, copy, found)

    assert looked.at.prefix == looked.copied.prefix == "wp_"
    assert {part.name for part in looked.tables} == set(TABLES)


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ("wp_posts", False),
        ("wp_options", False),
        ("wp_terms", False),
        ("wp_yoast_indexable", False),
        ("wp_woocommerce_attribute_taxonomies", False),
        ("wp_woocommerce_tax_rates", False),
        ("wp_users", True),
        ("wp_usermeta", True),
        ("wp_comments", True),
        ("wp_wc_orders", True),
        ("wp_wc_orders_meta", True),
        ("wp_wc_order_stats", True),
        ("wp_wc_customer_lookup", True),
        ("wp_woocommerce_order_items", True),
        ("wp_woocommerce_order_itemmeta", True),
        ("wp_woocommerce_sessions", True),
        ("wp_actionscheduler_actions", True),
        ("wp_gf_entry", True),
        ("wp_gf_entry_meta", True),
        ("wp_gf_form", False),
        ("wp_wpforms_entries", True),
        ("wp_frm_items", True),
        ("wp_fluentform_submissions", True),
        ("wp_fluentform_forms", False),
        ("wp_e_submissions_values", True),
        ("wp_db7_forms", True),
    ],
)
def test_which_tables_visitors_write(table: str, kept: bool) -> None:
    assert selection.is_kept(table, "wp_") is kept


def test_plugins_are_active_as_they_are_pushed() -> None:
    assert "active_plugins" in selection.kept_options(["wp-content/themes"])
    assert "active_plugins" not in selection.kept_options([selection.PLUGINS])
    assert {"siteurl", "home"} <= set(selection.kept_options([selection.PLUGINS]))


def test_a_table_with_triggers_is_not_moved() -> None:
    seen = Seen(["wp_a", "wp_b"], [], {}, {}, bound={"wp_a"}, visitors_posts=[])

    parts = selection.tables(seen, Baseline("s1_x", "wp_"))

    assert parts == [
        Part("wp_a", False, False, False, "it has triggers, or foreign keys lead to or from it"),
        Part("wp_b", True, True, False),
    ]
