"""What a push does to the live site, what it leaves alone, and that it is undone unless it comes to its end."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from svc_actors.panel.staging.pushing import preview_push
from svc_actors.panel.staging.records import pair_of
from svc_webhost.site_tasks import Take
from tests.panel.staging.shops import DOMAIN, PUSHED, TABLES, Shop, failing, put
from tests.support.site_tasks import Task


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


async def test_a_server_whose_tables_cannot_be_told_apart_is_asked_nothing(shop: Shop) -> None:
    await shop.staged()
    live, copy, found = await pair_of(shop.world.panel.database, shop.site["id"])

    preview = await preview_push(shop.world.panel.services.staging, live, copy, found)

    assert preview.at.prefix == preview.copied.prefix == "wp_"
    assert {part.name for part in preview.tables} == set(TABLES)
