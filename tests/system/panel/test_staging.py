"""A staging copy on a real server: nginx, PHP, MariaDB, WordPress. It is made, worked in, refreshed, pushed while
orders come, and pushed while the core is killed; the tests say what was seen of it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.lowlevel

from svc_webhost.folders import HostFolders
from tests.support.figures import report_figure
from tests.support.panel_programs import PanelPrograms, open_panel_programs

pytestmark = [pytest.mark.system, pytest.mark.isolated]

DOMAIN, COPY = "shop.example.com", "staging.shop.example.com"
MAILS = """<?php
require __DIR__ . '/wp-load.php';
wp_mail('ada@example.com', 'By WordPress', 'one');
mail('ada@example.com', 'By PHP', 'two');
echo wp_get_environment_type(), ' ', defined('DISABLE_WP_CRON') && DISABLE_WP_CRON ? 'no cron' : 'cron';
"""
PLUGIN = """<?php
/* Plugin Name: Tells */
register_activation_hook(__FILE__, fn () => wp_mail('ada@example.com', 'By the activation', 'three'));
"""
REACHES = """<?php
mysqli_report(MYSQLI_REPORT_OFF);
$live = @file_get_contents('{live}/public/wp-config.php') === false ? 'no file' : 'file';
$link = @mysqli_connect('localhost:{socket}', '{user}', '{password}', '{database}');
echo $live, ' ', $link ? 'database' : 'no database';
"""
TABLES = """
CREATE TABLE wp_wc_orders (id bigint PRIMARY KEY AUTO_INCREMENT, note text);
CREATE TABLE wp_woocommerce_order_items (id bigint PRIMARY KEY AUTO_INCREMENT, note text);
INSERT INTO wp_options (option_name, option_value) VALUES
    ('widget_shop', 'a:1:{s:3:"url";s:28:"http://shop.example.com/äö";}'), ('stripe_secret', 'live');
INSERT INTO wp_posts (ID, post_author, post_date, post_date_gmt, post_modified, post_modified_gmt, post_content,
    post_title, post_excerpt, to_ping, pinged, post_content_filtered, guid, post_status)
    VALUES (77, 1, now(), now(), now(), now(), 'see http://shop.example.com/', 'P', '', '', '', '',
    'http://shop.example.com/?p=77', 'publish');
"""


@dataclass
class Life:
    """What was seen, in the order in which it was done."""

    created: dict[str, Any] = field(default_factory=dict)
    copied: dict[str, Any] = field(default_factory=dict)
    without: httpx.Response | None = None
    within: httpx.Response | None = None
    robots: httpx.Response | None = None
    cron: int = 0
    content: dict[str, str] = field(default_factory=dict)
    worked: str = ""
    mails: list[str] = field(default_factory=list)
    activated: tuple[int, list[str]] = (0, [])
    reaches: str = ""
    preview: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Any] = field(default_factory=dict)
    classic: dict[str, Any] = field(default_factory=dict)
    refreshed: dict[str, Any] = field(default_factory=dict)
    pushed: dict[str, Any] = field(default_factory=dict)
    backups: int = 0
    orders: tuple[int, int] = (0, 0)
    statuses: set[int | str] = field(default_factory=set)
    live: dict[str, str] = field(default_factory=dict)
    broken: tuple[dict[str, Any], str, int] = ({}, "", 0)
    kills: list[tuple[str, dict[str, Any], str, str, int, str | None]] = field(default_factory=list)
    removed: tuple[dict[str, Any], list[str], list[str]] = ({}, [], [])


@pytest.fixture(scope="module")
def life() -> Life:
    return trio.run(live)


async def live() -> Life:
    began = time.monotonic()
    async with open_panel_programs() as panel:
        await panel.start()
        await panel.customer()
        seen = await Scene.open(panel)
        await seen.copy()
        await seen.refuse_drift()
        await seen.push()
        await seen.push_what_breaks()
        await seen.kill()
        await seen.remove()
    report_figure(f"the life of a staging copy: {time.monotonic() - began:.0f} s")
    return seen.life


@dataclass
class Scene:
    panel: PanelPrograms
    root: httpx.AsyncClient
    site: dict[str, Any]
    life: Life
    copied: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def open(cls, panel: PanelPrograms) -> Scene:
        root = panel.client()
        answer = await root.post(
            "/sites", json={"domain": DOMAIN, "type": "wordpress", "admin_email": "ada@example.com", "title": "Old"}
        )
        assert answer.status_code < 300, answer.text
        site = answer.json()
        scene = cls(panel, root, site, Life())
        jobs = (await root.get("/jobs")).json()["items"]
        made = await scene.ended(next(job for job in jobs if job["site_id"] == site["id"]))
        assert made["status"] == "succeeded", made
        await scene.sql(TABLES)
        # Whatever WordPress does when it is opened for the first time it has done.
        assert (await panel.visit(DOMAIN)).status_code == 200
        return scene

    @property
    def path(self) -> str:
        return f"/sites/{self.site['id']}/staging"

    @property
    def public(self) -> Path:
        return Path(self.panel.data, "sites", self.site["account"], "public")

    @property
    def socket(self) -> Path:
        return Path(self.panel.data, "run", "shared", "mariadb", "mysqld.sock")

    @property
    def work(self) -> Path:
        """The copy's document root."""
        return Path(self.panel.data, "sites", self.copied["account"], "public")

    async def copy(self) -> None:
        life = self.life
        answer = await self.root.post(self.path, json={})
        assert answer.status_code < 300, answer.text
        life.created = answer.json()
        life.copied = await self.ended(life.created)
        assert life.copied["status"] == "succeeded", life.copied
        shown = (await self.root.get(self.path)).json()
        self.copied = (await self.root.get(f"/sites/{shown['copy_id']}")).json()
        life.without = await self.panel.visit(COPY)
        life.within = await self.ask("/")
        life.robots = await self.panel.visit(COPY, "/robots.txt")
        life.cron = (await self.ask("/wp-cron.php")).status_code
        found = await self.sql(
            "SELECT option_name, option_value FROM wp_options WHERE option_name IN ('home', 'siteurl', 'widget_shop');"
            "SELECT 'post', post_content FROM wp_posts WHERE ID = 77; SELECT 'guid', guid FROM wp_posts WHERE ID = 77",
            self.copied,
        )
        life.content = dict(line.split("\t", 1) for line in found.splitlines())
        self.write(self.work / "mails.php", MAILS)
        life.worked = (await self.ask("/mails.php")).text
        folder = self.work.parent / "private" / "mail"
        kept = set(folder.glob("*.eml"))
        life.mails = sorted(file.read_text() for file in kept)
        self.write(self.work / "wp-content" / "plugins" / "tells.php", PLUGIN)
        asked = await self.root.post(
            f"/sites/{self.copied['id']}/wordpress/plugins/activate", json={"plugin": "tells.php"}
        )
        life.activated = (asked.status_code, [file.read_text() for file in set(folder.glob("*.eml")) - kept])
        configured = (self.public / "wp-config.php").read_text()
        known = dict(re.findall(r"define\('(DB_[A-Z]+)', '(.*?)'\)", (self.work / "wp-config.php").read_text()))
        socket = self.socket
        told = {"user": known["DB_USER"], "password": known["DB_PASSWORD"], "socket": socket}
        source = REACHES
        for name, value in {
            **told,
            "live": self.public.parent,
            "database": f"{self.site['account']}_wordpress",
        }.items():
            source = source.replace(f"{{{name}}}", str(value))
        self.write(self.work / "reaches.php", source)
        life.reaches = (await self.ask("/reaches.php")).text
        assert known["DB_PASSWORD"] not in configured

    async def refuse_drift(self) -> None:
        await self.sql("UPDATE wp_posts SET post_title = 'Changed meanwhile' WHERE ID = 77")
        self.life.preview = (await self.root.get(f"{self.path}/preview")).json()
        self.life.refused = await self.pushed()
        await self.sql("UPDATE wp_posts SET post_type = 'shop_order' WHERE ID = 77")
        self.life.classic = (await self.root.get(f"{self.path}/preview")).json()
        await self.sql("UPDATE wp_posts SET post_type = 'post' WHERE ID = 77")
        answer = await self.root.post(f"{self.path}/refresh", json={})
        assert answer.status_code < 300, answer.text
        self.life.refreshed = await self.ended(answer.json())
        assert self.life.refreshed["status"] == "succeeded", self.life.refreshed

    async def push(self) -> None:
        life = self.life
        await self.change("New")
        self.write(self.public / "wp-content" / "uploads" / "meanwhile.txt", "stays", self.public)
        async with self.orders() as (sent, statuses):
            life.pushed = await self.pushed()
        assert life.pushed["status"] == "succeeded", life.pushed["error"]
        life.orders = (int(await self.sql("SELECT count(*) FROM wp_wc_orders")), sent[0])
        life.statuses = statuses
        life.backups = (await self.root.get("/backups")).json()["total"]
        found = await self.sql(
            "SELECT option_name, option_value FROM wp_options "
            "WHERE option_name IN ('home', 'siteurl', 'widget_shop', 'blogname', 'stripe_secret');"
            "SELECT 'post', post_content FROM wp_posts WHERE ID = 77; SELECT 'guid', guid FROM wp_posts WHERE ID = 77"
        )
        life.live = dict(line.split("\t", 1) for line in found.splitlines())
        life.live["upload"] = (self.public / "wp-content" / "uploads" / "meanwhile.txt").read_text()
        life.live["front"] = (await self.panel.visit(DOMAIN)).text

    async def push_what_breaks(self) -> None:
        await self.change("Broken", "<?php this is no PHP")
        job = await self.pushed(files=["wp-content/mu-plugins"], tables=["wp_options"])
        self.life.broken = (job, await self.name(), (await self.panel.visit(DOMAIN)).status_code)

    async def kill(self) -> None:
        """The core, in the midst of a push, at each of its steps."""
        data = self.panel.data

        waits = self.public.parent / "private" / "wait"

        def switched(job: int) -> bool:
            """Tables and files are the new ones, and the core waits for the site's answer."""
            return (data / "sites" / f".staging-{job}" / "top" / "switched.json").exists() or (
                data / "sites" / f".staging-{job}" / "wp-content" / "switched.json"
            ).exists()

        moments: dict[str, Callable[[int], bool]] = {
            "backed up": lambda job: any((data / "backups" / "work").glob(f"{job}/*.json")),
            "switched": switched,
        }
        for number, (moment, reached) in enumerate(moments.items()):
            waits.touch()
            slow = f"while (file_exists('{waits}')) usleep(10000);"
            await self.change(f"Kill {number}", f"<?php // Kill {number}\n{slow}")
            before = await self.name()
            answer = await self.order(files=["wp-content/mu-plugins"], tables=["wp_options", "wp_posts"])
            with trio.fail_after(60):
                while not reached(answer["id"]):
                    await trio.sleep(0.002)  # It goes on outside of this process.
            await self.panel.core.kill()
            waits.unlink()
            await self.root.aclose()
            await self.panel.start()
            self.root = self.panel.client()
            job = await self.ended(answer)
            with trio.fail_after(60):
                while (data / "sites" / f".staging-{job['id']}").exists():
                    await trio.sleep(0.05)  # It goes on outside of this process.
            shown = (await self.root.get(self.path)).json()
            file = (self.public / "wp-content" / "mu-plugins" / "name.php").read_text().splitlines()[0]
            name = await self.name()
            kept = before if file == f"<?php // {name}" else f"torn: {name}, {file}"
            status = (await self.panel.visit(DOMAIN)).status_code
            self.life.kills.append((moment, job, kept, name, status, shown["reason"]))
            assert shown["status"] == "ready", shown

    async def remove(self) -> None:
        answer = await self.root.request("DELETE", self.path, json={})
        assert answer.status_code < 300, answer.text
        job = await self.ended(answer.json())
        left = [path.name for path in (self.panel.data / "sites").iterdir()]
        databases = await self.sql("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        self.life.removed = (job, left, [name for name in databases.split() if re.match(r"s\d+_", name)])

    async def change(self, name: str, source: str | None = None) -> None:
        """What is worked on in the copy: its name, in the database and in a file."""
        await self.sql(
            f"UPDATE wp_options SET option_value = '{name}' WHERE option_name = 'blogname';"
            "UPDATE wp_options SET option_value = 'test' WHERE option_name = 'stripe_secret'",
            self.copied,
        )
        self.write(self.work / "wp-content" / "mu-plugins" / "name.php", source or f"<?php // {name}")

    def write(self, file: Path, text: str, beside: Path | None = None) -> None:
        """A file of the site."""
        owner = (beside or self.work).stat()
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        for each in (file.parent, file):
            os.chown(each, owner.st_uid, owner.st_gid)

    async def name(self) -> str:
        return (await self.sql("SELECT option_value FROM wp_options WHERE option_name = 'blogname'")).strip()

    async def order(self, **values: Any) -> dict[str, Any]:
        answer = await self.root.post(f"{self.path}/push", json={"confirm": DOMAIN, **values})
        assert answer.status_code < 300, answer.text
        job: dict[str, Any] = answer.json()
        return job

    async def pushed(self, **values: Any) -> dict[str, Any]:
        return await self.ended(await self.order(**values))

    async def ended(self, job: dict[str, Any]) -> dict[str, Any]:
        with trio.fail_after(240):
            while (found := (await self.root.get(f"/jobs/{job['id']}")).json())["ended_at"] is None:
                await trio.sleep(0.05)  # It goes on outside of this process.
        assert isinstance(found, dict)
        return found

    async def ask(self, path: str) -> httpx.Response:
        """The copy, by who knows the password."""
        auth = httpx.BasicAuth(self.life.created["login"], self.life.created["password"])
        copy = f"http://127.0.0.1:{self.panel.http_port}"
        async with httpx.AsyncClient(base_url=copy, verify=False, timeout=60) as http:
            return await http.get(path, headers={"Host": COPY}, auth=auth)

    async def sql(self, statements: str, of: dict[str, Any] | None = None) -> str:
        socket = self.socket
        database = f"{(of or self.site)['account']}_wordpress"
        options = ["--no-defaults", f"--socket={socket}", "--batch", "--skip-column-names"]
        command = ["mariadb", *options, "--default-character-set=utf8mb4", database]
        told = await trio.run_process(command, stdin=statements.encode(), capture_stdout=True)
        return told.stdout.decode()

    def nginx_log(self) -> str:
        return HostFolders(self.panel.data).nginx_log.read_text(errors="replace")

    @asynccontextmanager
    async def orders(self) -> AsyncIterator[tuple[list[int], set[int | str]]]:
        """Orders come all the time, and visitors look at the shop."""
        sent, statuses = [0], set[int | str]()

        async def order() -> None:
            while True:
                with trio.CancelScope(shield=True):
                    await self.sql("INSERT INTO wp_wc_orders (note) VALUES ('one more')")
                    sent[0] += 1
                await trio.lowlevel.checkpoint()

        async def visit() -> None:
            while True:
                with trio.CancelScope(shield=True):
                    try:
                        statuses.add((await self.panel.visit(DOMAIN)).status_code)
                    except httpx.TransportError as error:
                        statuses.add(f"{error!r}: {self.nginx_log()[-4000:]}")
                await trio.sleep(0.1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(order)
            nursery.start_soon(visit)
            yield sent, statuses
            nursery.cancel_scope.cancel()


def test_the_copy_asks_for_a_password_and_no_search_engine_lists_it(life: Life) -> None:
    assert life.without is not None
    assert life.within is not None
    assert life.robots is not None
    assert life.without.status_code == 401
    assert life.without.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert life.within.status_code == 200
    assert life.within.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert (life.robots.status_code, life.robots.text) == (200, "User-agent: *\nDisallow: /\n")
    assert life.created["password"] not in json.dumps(life.copied)


def test_addresses_in_the_copy_are_its_own_and_serialised_lengths_follow(life: Life) -> None:
    assert life.content["home"] == life.content["siteurl"]
    assert life.content["home"].endswith(f"//{COPY}")
    assert life.content["widget_shop"] == 'a:1:{s:3:"url";s:36:"http://staging.shop.example.com/äö";}'
    assert life.content["post"] == f"see http://{COPY}/"
    assert life.content["guid"] == f"http://{DOMAIN}/?p=77"


def test_what_a_plugin_of_the_copy_mails_when_the_panel_activates_it_is_kept(life: Life) -> None:
    status, mails = life.activated

    assert status == 200
    assert ["By the activation" in mail for mail in mails] == [True]


def test_what_the_copy_mails_is_kept_and_its_schedules_are_off(life: Life) -> None:
    assert life.worked == "staging no cron"
    assert life.cron == 404
    by_php, by_wordpress = sorted(life.mails, key=lambda mail: "By WordPress" in mail)
    assert "Subject: By PHP" in by_php
    assert "two" in by_php
    assert "To: ada@example.com\nSubject: By WordPress" in by_wordpress


def test_the_copy_reaches_neither_files_nor_database_of_the_live_site(life: Life) -> None:
    assert life.reaches == "no file no database"


def test_drift_is_shown_and_a_push_over_it_refused(life: Life) -> None:
    assert life.preview["drift"] == ["wp_posts"]
    assert life.refused["status"] == "failed"
    assert "wp_posts" in life.refused["error"]["message"]
    assert "accept_drift" in life.refused["error"]["hint"]


def test_orders_and_users_are_left_alone_and_orders_that_are_posts_hold_the_posts(life: Life) -> None:
    usual = {part["name"] for part in life.preview["tables"] if part["pushed"]}
    held = {part["name"] for part in life.classic["tables"] if not part["allowed"]}
    assert {"wp_options", "wp_posts", "wp_postmeta", "wp_terms"} <= usual
    assert usual.isdisjoint({"wp_users", "wp_usermeta", "wp_comments", "wp_wc_orders", "wp_woocommerce_order_items"})
    assert held == {"wp_posts", "wp_postmeta", "wp_term_relationships"}


def test_a_push_loses_no_order_and_keeps_what_is_of_the_live_site(life: Life) -> None:
    held, sent = life.orders
    report_figure(f"orders during a push: {sent}, kept: {held}")
    assert life.pushed["status"] == "succeeded", life.pushed["error"]
    assert held == sent > 0
    assert life.statuses == {200}
    assert life.live["blogname"] == "New"
    assert life.live["home"].endswith(f"//{DOMAIN}")
    assert life.live["stripe_secret"] == "live"
    assert life.live["widget_shop"] == 'a:1:{s:3:"url";s:28:"http://shop.example.com/äö";}'
    assert life.live["post"] == f"see http://{DOMAIN}/"
    assert life.live["guid"] == f"http://{DOMAIN}/?p=77"
    assert life.live["upload"] == "stays"
    assert "New" in life.live["front"]
    assert COPY not in life.live["front"]
    assert life.backups == 1


def test_what_breaks_the_site_is_taken_back(life: Life) -> None:
    job, name, status = life.broken
    assert job["status"] == "failed"
    assert "answered 200 before the push and 500 after it" in job["error"]["message"]
    assert (name, status) == ("New", 200)


def test_a_killed_core_leaves_the_live_site_whole_and_the_record_says_so(life: Life) -> None:
    for moment, job, kept, name, status, reason in life.kills:
        assert job["status"] == "failed", moment
        assert job["error"]["message"] == "interrupted: core restarted", moment
        assert (kept, status) == (name, 200), moment
        assert reason == "The last push was not done: interrupted: core restarted", moment
    assert [kill[0] for kill in life.kills] == ["backed up", "switched"]


def test_nothing_is_left_of_a_deleted_copy(life: Life) -> None:
    job, left, databases = life.removed
    assert job["status"] == "succeeded"
    assert left == [f"s{life.created['site_id'] and 1001}"]
    assert databases == ["s1001_wordpress"]
