"""Staging copies as they are ordered: what is made of whom, who may, what follows the site, and what is refused."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.databases import DatabaseError
from svc_webhost.nginx import WordPress
from svc_webhost.site_tasks import SiteScript
from tests.panel.staging.shops import COPY, DOMAIN, Shop, home_of, put
from tests.panel.wordpress.blogs import databases_of
from tests.support.harness import Client
from tests.support.wordpress import PLUGIN, RecordedWordPress


async def member(shop: Shop, role: str, site_id: str | None = None) -> Client:
    """Somebody who works in the account, or in one site of it."""
    panel = shop.world.panel
    person = await panel.person("eve@example.com", "member")
    await panel.database.execute(
        """INSERT INTO account_members (account_id, user_id, site_id, role, invited_by, accepted_at)
           VALUES ($1, $2, $3, $4, 'ada', now())""",
        shop.world.ada_id,
        person,
        site_id,
        role,
    )
    return panel.program(await panel.token(person))


async def test_a_copy_is_a_site_of_its_own_behind_a_password(shop: Shop) -> None:
    created = await shop.staged()

    copy, shown = await shop.copy(), (await shop.by.get(shop.path)).json()
    served = shop.world.served(COPY)
    assert (shown["status"], shown["domain"], shown["reason"]) == ("ready", COPY, None)
    assert (copy["status"], copy["staging_of"]) == ("active", shop.site["id"])
    assert copy["account"] != shop.site["account"]
    assert served is not None
    assert served.staged is not None
    assert served.staged.login == created["login"] == "staging"
    assert isinstance(served.serves, WordPress)
    assert len(created["password"]) >= 20
    live = shop.world.served(DOMAIN)
    assert live is not None
    assert live.staged is None


async def test_what_is_asked_of_the_wordpress_of_a_copy_mails_nobody(shop: Shop) -> None:
    await shop.staged()
    copy, played = await shop.copy(), cast(RecordedWordPress, shop.world.panel.host.wordpress)
    played.installed[copy["account"]] = played.installed[shop.site["account"]]
    played.passwords[copy["account"], "ada"] = ""

    for site in (copy, shop.site):
        path = f"/sites/{site['id']}/wordpress"
        answers = [
            await shop.world.root.get(path),
            await shop.world.root.post(f"{path}/login", {"login": "ada"}),
            await shop.world.root.post(f"{path}/password", {"login": "ada"}),
            await shop.world.root.post(f"{path}/plugins/activate", {"plugin": PLUGIN}),
        ]
        assert [answer.status_code for answer in answers] == [200] * 4, [answer.text for answer in answers]

    questions = ("look", "login_link", "set_password", "switch_plugin")
    assert [played.staged[copy["account"], question] for question in questions] == [True] * 4
    assert [played.staged[shop.site["account"], question] for question in questions] == [False] * 4


async def test_the_copy_has_files_and_tables_but_its_own_configuration(shop: Shop) -> None:
    await shop.staged()

    copy = await shop.copy()
    public = home_of(shop.world, copy["number"]) / "public"
    assert (public / "wp-content" / "themes" / "shop" / "style.css").read_text() == "old style"
    assert not (public / "wp-content" / "cache").exists()
    assert (public / "wp-config.php").read_text().startswith(f"<?php // {COPY} {copy['account']}_wordpress")
    assert (public / "wp-config.php").stat().st_mode & 0o777 == 0o600
    assert shop.tables.of(f"{copy['account']}_wordpress") == shop.live()[1]
    assert shop.left() == []


async def test_the_password_is_shown_once_and_replaced_on_request(shop: Shop) -> None:
    created = await shop.staged()
    before = shop.world.served(COPY)

    answer = await shop.by.post(f"{shop.path}/password", {})

    after = shop.world.served(COPY)
    assert answer.status_code == 200
    assert answer.json()["password"] != created["password"]
    assert before is not None
    assert after is not None
    assert before.staged != after.staged
    kept = str(await shop.world.panel.audit()) + str(await shop.world.panel.database.fetch("SELECT * FROM stagings"))
    assert created["password"] not in kept
    assert answer.json()["password"] not in kept


async def test_no_schedule_comes_with_the_copy(shop: Shop) -> None:
    await shop.staged()

    copy = await shop.copy()
    live = (await shop.by.get(f"/sites/{shop.site['id']}/schedules")).json()
    assert "wordpress-cron" in str(live)
    assert "wordpress-cron" not in str((await shop.by.get(f"/sites/{copy['id']}/schedules")).json())


async def test_scheduled_tasks_of_the_copy_keep_their_mail_and_those_of_the_site_send_it(shop: Shop) -> None:
    await shop.staged()
    for site_id in ((await shop.copy())["id"], shop.site["id"]):
        body = {"name": "task", "kind": "php", "path": "private/task.php", "cron": "0 0 1 1 *"}
        made = (await shop.by.post(f"/sites/{site_id}/schedules", body)).json()
        assert (await shop.by.post(f"/schedules/{made['id']}/run", {})).is_success

    def scripts() -> list[SiteScript]:
        return [task for task in shop.tasks.begun if isinstance(task, SiteScript)]

    await shop.tasks.told.until(lambda: len(scripts()) == 2)

    live = shop.site["account"]
    assert {task.account.name == live: task.staged for task in scripts()} == {True: False, False: True}


async def test_what_cannot_be_copied_is_refused(shop: Shop) -> None:
    await shop.staged()
    copy = await shop.copy()
    static = await shop.world.create("plain.example")

    answers = [
        await shop.by.post(f"/sites/{static['id']}/staging", {}),
        await shop.by.post(shop.path, {}),
        await shop.by.post(f"/sites/{copy['id']}/staging", {}),
    ]

    assert [answer.status_code for answer in answers] == [409, 409, 409]


@pytest.mark.parametrize("name", ["", "a.b", "-a", "a_b", "A", "a" * 64])
async def test_a_name_that_is_no_label_is_refused(shop: Shop, name: str) -> None:
    assert (await shop.by.post(shop.path, {"name": name})).status_code == 400


async def test_without_a_copy_there_is_none(shop: Shop) -> None:
    shown = await shop.by.get(shop.path)

    assert shown.json()["status"] == "none"
    for path in ("refresh", "push", "password"):
        body = {"confirm": DOMAIN} if path == "push" else {}
        assert (await shop.by.post(f"{shop.path}/{path}", body)).status_code == 404
    assert (await shop.by.get(f"{shop.path}/preview")).status_code == 404


async def test_a_copy_that_was_not_finished_says_why_and_is_made_whole_by_a_refresh(shop: Shop) -> None:
    async def fail(method: str) -> None:
        if method == "load":
            raise DatabaseError("The disk of the database is full.")

    databases = databases_of(shop.world)
    databases.before, undisturbed = fail, databases.before
    job = await shop.ended(await shop.by.post(shop.path, {}))
    failed = (await shop.by.get(shop.path)).json()
    refused = await shop.by.post(f"{shop.path}/push", {"confirm": DOMAIN})
    unserved = shop.world.served(COPY)
    databases.before = undisturbed

    again = await shop.ended(await shop.by.post(f"{shop.path}/refresh", {}))

    assert job["status"] == "failed"
    assert (failed["status"], failed["reason"]) == ("failed", "The disk of the database is full.")
    assert refused.status_code == 409
    assert unserved is None
    assert again["status"] == "succeeded", again
    assert (await shop.by.get(shop.path)).json()["status"] == "ready"
    assert (await shop.copy())["status"] == "active"
    assert shop.left() == []


async def test_a_refresh_brings_what_the_site_is_now(shop: Shop) -> None:
    await shop.staged()
    await shop.work()
    put(shop.home, shop.site["number"], "wp-content/themes/shop/style.css", "later style")

    job = await shop.ended(await shop.by.post(f"{shop.path}/refresh", {}))

    copy = await shop.copy()
    public = home_of(shop.world, copy["number"]) / "public"
    assert job["status"] == "succeeded"
    assert (public / "wp-content" / "themes" / "shop" / "style.css").read_text() == "later style"
    assert shop.tables.of(f"{copy['account']}_wordpress") == shop.live()[1]


async def test_a_copy_is_suspended_and_put_back_with_its_site(shop: Shop) -> None:
    await shop.staged()
    path = f"/sites/{shop.site['id']}/suspend"

    await shop.world.root.post(path, {"reason": "unpaid"})
    suspended = await shop.copy()
    refused = await shop.by.post(f"{shop.path}/refresh", {})
    await shop.world.root.post(path, {"suspended": False})

    assert (suspended["status"], suspended["suspended_by"]) == ("suspended", "administrator")
    assert refused.status_code == 409
    assert (await shop.copy())["status"] == "active"


async def test_a_copy_is_deleted_where_it_is_one_and_nothing_of_it_is_left(shop: Shop) -> None:
    await shop.staged()
    copy = await shop.copy()

    refused = await shop.by.delete(f"/sites/{copy['id']}", {"confirm": COPY})
    job = await shop.ended(await shop.by.delete(shop.path, {}))

    assert refused.status_code == 409
    assert "svc site staging delete" in refused.json()["error"]["hint"]
    assert job["status"] == "succeeded"
    assert (await shop.by.get(shop.path)).json()["status"] == "none"
    assert (await shop.by.get(f"/sites/{copy['id']}")).status_code == 404
    assert shop.world.served(COPY) is None
    assert shop.live()[0]["index.php"] == "old index"
    assert f"{copy['account']}_wordpress" not in shop.tables._contents


async def test_a_deleted_site_takes_its_copy_along(shop: Shop) -> None:
    await shop.staged()
    copy = await shop.copy()

    job = await shop.world.delete(shop.site)
    await shop.world.panel.jobs_ended()

    assert job["status"] == "succeeded", job
    assert (await shop.by.get(f"/sites/{copy['id']}")).status_code == 404
    assert shop.world.served(COPY) is None
    assert await shop.world.panel.database.fetch("SELECT * FROM stagings") == []


async def test_neither_site_nor_copy_changes_its_owner_alone(shop: Shop) -> None:
    await shop.staged()
    copy = await shop.copy()

    answers = [
        await shop.world.root.patch(f"/sites/{each['id']}", {"owner_email": "bob@example.com"})
        for each in (shop.site, copy)
    ]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert "staging copy" in answers[0].json()["error"]["message"]


async def test_what_was_a_copy_is_never_served_without_its_password(shop: Shop, panel_database: Database) -> None:
    await shop.staged()
    copy = await shop.copy()
    async with panel_database.transaction() as tx:
        await tx.execute("DELETE FROM stagings")

    await shop.by.patch(f"/sites/{copy['id']}", {"force_https": False})

    assert shop.world.served(COPY) is None


async def test_a_copy_counts_as_a_site_and_a_database_of_the_plan(shop: Shop) -> None:
    plan = {"name": "small", "sites": 1}
    assert (await shop.world.root.post("/plans", plan)).status_code < 300
    assert (await shop.world.root.post(f"/accounts/{shop.world.ada_id}/plan", {"plan": "small"})).status_code < 300

    answer = await shop.by.post(shop.path, {})

    assert answer.status_code == 409
    assert "allows 1 sites" in answer.json()["error"]["message"]


async def test_another_customer_sees_nothing_of_it(shop: Shop) -> None:
    await shop.staged()
    bob = shop.world.bob

    for answer in (
        await bob.get(shop.path),
        await bob.get(f"{shop.path}/preview"),
        await bob.post(shop.path, {}),
        await bob.post(f"{shop.path}/refresh", {}),
        await bob.post(f"{shop.path}/push", {"confirm": DOMAIN}),
        await bob.post(f"{shop.path}/password", {}),
        await bob.delete(shop.path, {}),
    ):
        assert answer.status_code == 404


async def test_no_two_jobs_work_on_a_site_and_its_copy_at_a_time(shop: Shop) -> None:
    await shop.staged()
    copy = await shop.copy()
    reached, go_on = trio.Event(), trio.Event()

    async def wait(method: str) -> None:
        if method == "load":
            reached.set()
            await go_on.wait()

    databases_of(shop.world).before = wait
    refresh = await shop.by.post(f"{shop.path}/refresh", {})
    with trio.fail_after(30):
        await reached.wait()
    backup = await shop.by.post(f"/sites/{copy['id']}/backups", {})
    waiting = (await shop.by.get(f"/jobs/{backup.json()['id']}")).json()["status"]
    deletion = await shop.by.delete(shop.path, {})
    go_on.set()

    assert waiting == "queued"
    assert deletion.status_code == 409
    assert (await shop.ended(refresh))["status"] == "succeeded"
    assert (await shop.ended(backup))["started_at"] is not None


async def test_each_order_is_in_the_audit_with_its_site(shop: Shop) -> None:
    await shop.staged()
    await shop.push()
    await shop.ended(await shop.by.post(f"{shop.path}/refresh", {}))
    await shop.ended(await shop.by.delete(shop.path, {}))

    rows = [row for row in await shop.world.panel.audit() if row["operation"].startswith("staging.")]
    of_ada = [row["operation"] for row in rows if row["target_name"] == DOMAIN and row["actor"] == "ada@example.com"]
    assert {"staging.create", "staging.push", "staging.refresh", "staging.delete"} <= set(of_ada)


async def test_a_developer_of_the_site_alone_may_stage_it_and_work_in_the_copy(shop: Shop) -> None:
    eve = await member(shop, "developer", shop.site["id"])

    job = await shop.ended(await eve.post(shop.path, {}))
    copy = await shop.copy()
    seen = (await eve.get(f"/sites/{copy['id']}")).status_code
    may = (await eve.get(f"/sites/{copy['id']}/operations")).json()["operations"]
    listed = [site["domain"] for site in (await eve.get("/sites")).json()["items"]]
    pushed = await shop.ended(await eve.post(f"{shop.path}/push", {"confirm": DOMAIN}))

    assert (job["status"], pushed["status"]) == ("succeeded", "succeeded")
    assert seen == 200
    assert "file.write" in may or "file.mkdir" in may
    assert sorted(listed) == [DOMAIN, COPY]


@pytest.mark.parametrize("role", ["viewer", "editor"])
async def test_who_only_looks_or_writes_files_stages_nothing(shop: Shop, role: str) -> None:
    eve = await member(shop, role)

    assert (await eve.get(shop.path)).json()["status"] == "none"
    assert (await eve.post(shop.path, {})).status_code == 403
