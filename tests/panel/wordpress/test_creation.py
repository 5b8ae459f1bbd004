"""WordPress sites are created, by a job that goes on whatever stops it, and deleted with all that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.wordpress.cron import WordPressCron
from svc_actors.store import Database
from svc_webhost.accounts import AccountError
from svc_webhost.databases import Access, DatabaseName, UserName
from svc_webhost.nginx import WordPress
from svc_webhost.wordpress import WordPressError
from svc_webhost.wordpress.configuration import configuration
from tests.panel.sites.world import World
from tests.panel.wordpress.blogs import creation_of, databases_of, made, order, played
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_sites import RecordedAccounts, nothing
from tests.support.wordpress import RecordedWordPress

STEPS = ["make_account", "place_files", "make_database", "install", "serve", "get_certificate"]


async def test_a_site_is_ordered_at_once_and_made_by_a_job(world: World) -> None:
    ordered = await order(world, title="Ada's blog", language="de_DE")
    job = await creation_of(world, ordered)
    site = (await world.ada.get(f"/sites/{ordered['id']}")).json()

    assert ordered["status"] == "creating"
    assert [(step["name"], step["status"]) for step in job["steps"]] == [(name, "succeeded") for name in STEPS]
    assert (site["status"], site["force_https"]) == ("active", True)
    server = world.served("blog.example")
    assert server is not None
    assert isinstance(server.serves, WordPress)
    assert server.serves.root.endswith(f"/{site['account']}/public")
    wanted = played(world).installed[site["account"]]
    assert (wanted.title, wanted.locale, wanted.domain) == ("Ada's blog", "de_DE", "blog.example")
    assert (wanted.login, wanted.email) == ("ada", "ada@example.com")
    assert [event for event, _ in await world.told()] == ["site.created"]


async def test_its_database_is_its_own(world: World) -> None:
    site = await made(world)

    wanted = played(world).installed[site["account"]].database
    listed = (await world.ada.get("/databases")).json()["items"]
    mariadb = databases_of(world)
    assert wanted.name == wanted.user == f"{site['account']}_wordpress"
    assert list(mariadb.contents) == [wanted.name]
    assert [(each["name"], each["site_id"], each["status"]) for each in listed] == [(wanted.name, site["id"], "active")]
    assert mariadb.accounts[UserName(wanted.user)].verifier == mariadb.verifier(wanted.password)
    assert mariadb.accounts[UserName(wanted.user)].access == {DatabaseName(wanted.name): Access.FULL}


async def test_nothing_that_is_kept_or_told_has_its_passwords(world: World) -> None:
    site = await made(world)

    wanted = played(world).installed[site["account"]]
    told = [str(row) for row in await world.panel.audit()]
    for table in ("wordpress_sites", "jobs", "job_lines", "webhook_events", "sites"):
        told += [str(dict(row)) for row in await world.panel.database.fetch(f"SELECT * FROM {table}")]
    for secret in (wanted.password, wanted.database.password):
        assert len(secret) >= 20
        assert secret not in "".join(told)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "static", "title": "x"}, "title"),
        ({"type": "static", "language": "de_DE"}, "language"),
        ({"type": "wordpress", "language": "xx_XX"}, "language"),
        ({"type": "wordpress", "language": "../x"}, "language"),
        ({"type": "wordpress", "title": " "}, "title"),
        ({"type": "wordpress", "title": "a\nb"}, "title"),
        ({"type": "wordpress", "proxy_target": "http://1.1.1.1"}, "proxy_target"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_made(world: World, body: dict[str, Any], field: str) -> None:
    refused = await world.ada.post("/sites", {"domain": "blog.example", **body})

    assert refused.status_code == 400
    assert field in refused.json()["error"]["message"]
    assert (await world.ada.get("/sites")).json()["total"] == 0


async def test_a_server_without_wordpress_says_so_before_anything_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def languages() -> frozenset[str]:
        raise WordPressError("there is no WordPress in /usr/share/wordpress")

    monkeypatch.setattr(played(world), "languages", languages)

    refused = await world.ada.post("/sites", {"domain": "blog.example", "type": "wordpress"})

    assert refused.status_code == 503
    assert "/usr/share/wordpress" in refused.json()["error"]["message"]
    assert (await world.ada.get("/sites")).json()["total"] == 0


async def test_an_installation_that_fails_is_said_and_begun_anew_by_the_same_call(world: World) -> None:
    failing = True

    async def fail(step: str) -> None:
        if failing and step == "install":
            raise WordPressError("Error establishing a database connection")

    played(world).before = fail
    ordered = await order(world)
    first = await creation_of(world, ordered)
    left = (await world.ada.get(f"/sites/{ordered['id']}")).json()
    failing = False
    again = await order(world)
    second = await creation_of(world, again)
    site = (await world.ada.get(f"/sites/{ordered['id']}")).json()

    assert [step["status"] for step in first["steps"]] == ["succeeded"] * 3 + ["failed"] + ["cancelled"] * 2
    assert "database connection" in first["error"]["message"]
    assert left["status"] == "failed"
    assert "database connection" in left["reason"]
    assert again["id"] == ordered["id"]
    assert second["status"] == "succeeded"
    assert (site["status"], site["reason"]) == ("active", None)
    assert played(world).attempts == 2


async def test_a_wordpress_that_was_installed_is_not_installed_again(world: World) -> None:
    world.web.refuses[1001] = "directive is not allowed"
    ordered = await order(world)
    first = await creation_of(world, ordered)
    failed = (await world.ada.get(f"/sites/{ordered['id']}")).json()
    world.web.refuses.clear()
    await order(world)
    second = await creation_of(world, ordered)

    assert first["status"] == "failed"
    assert failed["status"] == "failed"
    assert second["status"] == "succeeded"
    assert played(world).attempts == 1


async def test_one_whose_deletion_has_failed_half_way_is_installed_anew(world: World) -> None:
    site = await made(world)

    async def fail(step: str) -> None:
        if step == "remove":
            raise AccountError("userdel: cannot lock /etc/passwd")

    world.accounts.before = fail
    removal = await world.delete(site)
    databases = (await world.ada.get("/databases")).json()["items"]
    world.accounts.before = lambda step: nothing()
    again = await made(world)

    assert removal["status"] == "failed"
    assert databases == []
    assert (again["id"], again["status"]) == (site["id"], "active")
    assert played(world).attempts == 2
    assert list(databases_of(world).contents) == [played(world).installed[site["account"]].database.name]


async def test_its_cron_is_a_schedule_that_its_owner_may_do_without(world: World) -> None:
    site = await made(world)
    [schedule] = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()

    deleted = await world.ada.delete(f"/schedules/{schedule['id']}")
    await cron_of(world).round()
    left = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()

    assert (schedule["name"], schedule["kind"], schedule["path"]) == ("wordpress-cron", "php", "public/wp-cron.php")
    assert schedule["cron"] == "1-59/5 * * * *"
    assert schedule["next_run_at"] is not None
    assert "DISABLE_WP_CRON" in configuration("x", played(world).installed[site["account"]].database)
    assert deleted.status_code == 200
    assert left == []


async def test_one_that_was_made_without_a_schedule_gets_it_once(world: World) -> None:
    site = await made(world)
    path = f"/sites/{site['id']}/schedules"
    await world.panel.database.execute("DELETE FROM schedules")
    await world.panel.database.execute("UPDATE wordpress_sites SET cron_scheduled = false")

    await cron_of(world).round()
    await cron_of(world).round()
    made_once = (await world.ada.get(path)).json()

    assert [schedule["name"] for schedule in made_once] == ["wordpress-cron"]
    assert played(world).left_cron == [site["account"]]


async def test_one_whose_files_cannot_be_changed_keeps_its_own_cron_until_they_can(world: World) -> None:
    site = await made(world)
    await world.panel.database.execute("DELETE FROM schedules")
    await world.panel.database.execute("UPDATE wordpress_sites SET cron_scheduled = false")

    async def refuse(step: str) -> None:
        raise WordPressError("the site has no wp-config.php")

    played(world).before = refuse
    await cron_of(world).round()
    none = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()
    played(world).before = lambda step: nothing()
    await cron_of(world).round()
    [schedule] = (await world.ada.get(f"/sites/{site['id']}/schedules")).json()

    assert none == []
    assert schedule["path"] == "public/wp-cron.php"


def cron_of(world: World) -> WordPressCron:
    return WordPressCron(world.panel.database, world.panel.host.wordpress, world.panel.host.clock)


async def test_a_creation_that_is_cancelled_leaves_a_site_that_can_be_deleted(world: World) -> None:
    reached, never = trio.Event(), trio.Event()

    async def hang(step: str) -> None:
        reached.set()
        await never.wait()

    played(world).before = hang
    ordered = await order(world)
    with trio.fail_after(60):
        await reached.wait()
    [job] = (await world.ada.get("/jobs")).json()["items"]
    await world.ada.post(f"/jobs/{job['id']}/cancel", {})
    cancelled = await creation_of(world, ordered)
    left = (await world.ada.get(f"/sites/{ordered['id']}")).json()
    removal = await world.delete(ordered)

    assert cancelled["status"] == "cancelled"
    assert left["status"] == "failed"
    assert removal["status"] == "succeeded"


@pytest.mark.parametrize(("step", "times"), [("make", 1), ("place_files", 1), ("install", 1), ("make", 2)])
async def test_a_creation_that_a_killed_core_left_goes_on_from_any_step(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    host = recorded_host()
    assert isinstance(host.wordpress, RecordedWordPress)
    assert isinstance(host.accounts, RecordedAccounts)
    reached, left = trio.Event(), times

    async def stop(begun: str) -> None:
        nonlocal left
        left -= begun == step
        if left == 0 and not reached.is_set():
            reached.set()
            await trio.sleep_forever()

    host.wordpress.before = host.accounts.before = stop
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        ada = await panel.customer()
        ordered = (await ada.post("/sites", {"domain": "blog.example", "type": "wordpress"})).json()
        with trio.fail_after(60):
            await reached.wait()
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        root = await panel.administrator()
        await panel.jobs_ended()
        site = (await root.get(f"/sites/{ordered['id']}")).json()
        jobs = (await root.get("/jobs")).json()["items"]

    assert [job["error"]["message"] for job in jobs if job["status"] == "failed"] == ["interrupted: core restarted"]
    assert len(jobs) == 2
    assert site["status"] == "active"
    assert host.wordpress.installed[site["account"]].domain == "blog.example"
    assert host.wordpress.attempts == (2 if step == "install" else 1)


async def test_a_deleted_site_leaves_no_database(world: World) -> None:
    site = await made(world)

    removal = await world.delete(site)

    assert removal["status"] == "succeeded"
    assert (await world.ada.get("/databases")).json()["total"] == 0
    assert databases_of(world).contents == {}
    assert databases_of(world).accounts == {}
    assert await world.panel.database.fetchval("SELECT count(*) FROM wordpress_sites") == 0
