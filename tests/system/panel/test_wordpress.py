"""A WordPress on a real server: nginx, PHP, MariaDB, an authority. It is made, used as people use it, and removed; the
tests say what was seen of it."""

from __future__ import annotations

import base64
import html
import re
import shutil
import ssl
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc_webhost.accounts import FIRST_UID
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.pebble import open_pebble

pytestmark = [pytest.mark.system, pytest.mark.isolated]

DOMAIN = "blog.example.com"
TITLE = "Ada & <the> Blog"
ATTEMPTED = (
    *("/wp-config.php", "/wp-config-sample.php", "/xmlrpc.php", "/xmlrpc.php/x", "/wp-admin/install.php"),
    *("/readme.html", "/wp-content/debug.log", "/wp-content/uploads/x.php", "/wp-content/uploads/x.PHP/y"),
    *("/wp-config.php.bak", "/second/wp-config.php"),
)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Kept:
    """What visitors are shown, every file with its mode, and every row."""

    shown: tuple[int, bytes]
    files: dict[str, tuple[int, bytes]]
    rows: list[str]


@dataclass
class Previewed:
    """What a browser got that knows the preview's address only."""

    url: str
    pages: dict[str, httpx.Response]
    signed_in: httpx.Response
    dashboard: httpx.Response
    cookies: set[str]
    """The domains of those that the browser has."""
    log: list[str]


@dataclass
class Life:
    """What was seen, in the order in which it was done."""

    created: dict[str, Any]
    job: dict[str, Any]
    seconds: float
    front: httpx.Response
    plain: httpx.Response
    post: httpx.Response
    described: dict[str, Any]
    attempted: dict[str, int]
    configuration: tuple[int, int]
    links: int
    """Of symbolic links in the site."""
    dashboard: httpx.Response
    again: httpx.Response
    aged: httpx.Response
    unused: list[str]
    uploaded: httpx.Response
    picture: httpx.Response
    password: httpx.Response
    wrong: httpx.Response
    maintained: int
    back: int
    plugin: list[dict[str, Any]]
    previewed: Previewed
    kept: tuple[Kept, Kept, Kept]
    handed: dict[str, Any]
    """At the backup, damaged, and restored."""
    removal: dict[str, Any]
    left: list[str]
    databases: tuple[list[str], list[str]]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return trio.run(live, tmp_path_factory.mktemp("wordpress"))


async def live(folder: Path) -> Life:
    async with open_pebble(folder / "pebble") as authority, open_panel_programs(authority) as panel:
        await panel.start()
        await panel.customer()
        began = time.monotonic()
        async with panel.client() as root:
            answer = await root.post(
                "/sites",
                json={"domain": DOMAIN, "type": "wordpress", "admin_email": "ada@example.com", "title": TITLE},
            )
            assert answer.status_code < 300, answer.text
            created = answer.json()
            job = await ended(root, await job_of(root, created["id"], "site.create"))
            seconds = time.monotonic() - began
            assert job["status"] == "succeeded", job
            trust = ssl.create_default_context(cadata=await authority.root())
            async with visitor(panel, trust) as someone:
                return await used(panel, root, someone, trust, created, job, seconds)


async def used(
    panel: PanelPrograms,
    root: httpx.AsyncClient,
    someone: httpx.AsyncClient,
    trust: ssl.SSLContext,
    created: dict[str, Any],
    job: dict[str, Any],
    seconds: float,
) -> Life:
    path, public = f"/sites/{created['id']}", panel.data / "sites" / created["account"] / "public"
    described = (await root.get(f"{path}/wordpress")).json()
    for name in ("uploads/x.php", "debug.log"):
        (public / "wp-content" / name).write_text("<?php echo 'run';")
    (public / "wp-config.php.bak").write_text("secret")
    (public / "second").mkdir()
    (public / "second" / "wp-config.php").write_text("<?php echo 'run';")
    configured = (public / "wp-config.php").stat()

    link = (await root.post(f"{path}/wordpress/login", json={})).json()
    async with visitor(panel, trust) as ada:
        dashboard = await ada.get(path_of(link), follow_redirects=True)
        again = await someone.get(path_of(link))
        uploaded = await upload(ada)
    picture = await someone.get(path_in(uploaded))
    second = (await root.post(f"{path}/wordpress/login", json={"login": "ada"})).json()
    file = public / path_of(second).lstrip("/")
    file.write_text(re.sub(r"time\(\) > \d+", "time() > 1", file.read_text()))
    aged = await someone.get(path_of(second))
    reset = (await root.post(f"{path}/wordpress/password", json={})).json()

    await root.post(f"{path}/wordpress/maintenance", json={"maintenance": True})
    maintained = (await someone.get("/")).status_code
    await root.post(f"{path}/wordpress/maintenance", json={"maintenance": False})
    plugin = []
    for what in ("activate", "deactivate"):
        done = await root.post(f"{path}/wordpress/plugins/{what}", json={"plugin": "akismet/akismet.php"})
        assert done.status_code == 200, done.text
        plugin += [
            each for each in (await root.get(f"{path}/wordpress")).json()["plugins"] if "akismet" in each["file"]
        ]
    return Life(
        created=created,
        job=job,
        seconds=seconds,
        front=await someone.get("/"),
        plain=await panel.visit(DOMAIN),
        post=await someone.get("/hello-world/"),
        described=described,
        attempted={each: (await someone.get(each)).status_code for each in ATTEMPTED},
        configuration=(stat.S_IMODE(configured.st_mode), configured.st_uid),
        links=sum(each.is_symlink() for each in public.rglob("*")),
        dashboard=dashboard,
        again=again,
        aged=aged,
        unused=[each.name for each in public.glob("svc-login-*")],
        uploaded=uploaded,
        picture=picture,
        password=await signed_in(panel, trust, reset["password"]),
        wrong=await signed_in(panel, trust, "guess"),
        maintained=maintained,
        back=(await someone.get("/")).status_code,
        plugin=plugin,
        previewed=await by_preview(panel, root, created, trust, reset["password"]),
        kept=await restored(panel, root, created, someone, path_in(uploaded)),
        handed=await handed_over(panel, root, created, someone, trust, reset["password"]),
        **await removed(panel, root, created),
    )


async def by_preview(
    panel: PanelPrograms, root: httpx.AsyncClient, site: dict[str, Any], trust: ssl.SSLContext, password: str
) -> Previewed:
    set_ = await root.patch("/settings", json={"preview_domain": "previews.example.net"})
    assert set_.status_code == 200, set_.text
    url = (await root.get(f"/sites/{site['id']}")).json()["preview_url"]
    log = panel.data / "logs" / "sites" / site["account"] / "access.log"
    async with httpx.AsyncClient(transport=AtThisServer(trust), base_url=url, timeout=60) as browser:
        with trio.fail_after(60):
            while True:
                try:
                    await browser.get("/robots.txt")
                    break
                except httpx.TransportError:
                    await trio.sleep(0.1)  # The web server takes it up outside of this process.
        before = len(log.read_text().splitlines())
        paths = ("/", "/hello-world/", "/wp-login.php", "/wp-admin/", "/wp-json/", "/robots.txt")
        pages = {path: await browser.get(path, follow_redirects=True) for path in paths}
        form = {"log": "ada", "pwd": password, "wp-submit": "Log In", "redirect_to": f"{url}/wp-admin/profile.php"}
        signed_in = await browser.post("/wp-login.php", data=form)
        dashboard = await browser.get(signed_in.headers.get("Location", "/"), follow_redirects=True)
        return Previewed(
            url,
            pages,
            signed_in,
            dashboard,
            {cookie.domain for cookie in browser.cookies.jar},
            log.read_text().splitlines()[before:],
        )


async def handed_over(
    panel: PanelPrograms,
    root: httpx.AsyncClient,
    site: dict[str, Any],
    someone: httpx.AsyncClient,
    trust: ssl.SSLContext,
    password: str,
) -> dict[str, Any]:
    """To somebody else, whose predecessor knew a password of WordPress and that of its database."""
    configuration = panel.data / "sites" / site["account"] / "public" / "wp-config.php"
    known = re.findall(r"define\('DB_PASSWORD', '(.*)'\)", configuration.read_text())
    configuration.write_text(configuration.read_text() + "\n// A line of its owner's.\n")
    await panel.customer("bob@example.com")
    answer = await root.patch(f"/sites/{site['id']}", json={"owner_email": "bob@example.com"})
    assert answer.status_code == 200, answer.text
    told = answer.json()["handover"]
    return {
        "told": told,
        "job": await ended(root, {"id": told["job_id"], "ended_at": None}),
        "passwords": (known, re.findall(r"define\('DB_PASSWORD', '(.*)'\)", configuration.read_text())),
        "kept": configuration.read_text().endswith("// A line of its owner's.\n"),
        "mode": stat.S_IMODE(configuration.stat().st_mode),
        "front": (await someone.get("/")).status_code,
        "by_old_password": (await signed_in(panel, trust, password)).status_code,
        "administrator": (await root.get(f"/sites/{site['id']}/wordpress")).json()["admin_email"],
    }


async def restored(
    panel: PanelPrograms, root: httpx.AsyncClient, site: dict[str, Any], someone: httpx.AsyncClient, picture: str
) -> tuple[Kept, Kept, Kept]:
    """It is backed up, damaged in its files and its database, and restored."""
    public = panel.data / "sites" / site["account"] / "public"
    [database] = {name for name in await databases(panel) if await rows(panel, name)}

    async def kept() -> Kept:
        files = {
            str(path.relative_to(public)): (path.stat().st_mode, b"" if path.is_dir() else path.read_bytes())
            for path in public.rglob("*")
        }
        answer = await someone.get(picture)
        return Kept((answer.status_code, answer.content), files, await rows(panel, database))

    backup = await ended(root, (await root.post(f"/sites/{site['id']}/backups", json={})).json())
    assert backup["status"] == "succeeded", backup
    before = await kept()
    shutil.rmtree(public / "wp-content")
    (public / "index.php").write_text("defaced")
    await asked(panel, f"DROP TABLE `{database}`.wp_posts; UPDATE `{database}`.wp_options SET option_value = 'x'")
    damaged = await kept()
    [saved] = (await root.get("/backups")).json()["items"]
    restoration = await ended(root, (await root.post(f"/backups/{saved['id']}/restore", json={})).json())
    assert restoration["status"] == "succeeded", restoration
    return before, damaged, await kept()


async def rows(panel: PanelPrograms, database: str) -> list[str]:
    """Everything in the database, as MariaDB dumps it; nothing of what is no database."""
    [socket] = [path for path in panel.data.rglob("mysqld.sock") if path.is_socket()]
    command = ["mariadb-dump", "--no-defaults", f"--socket={socket}", "--skip-comments", "--order-by-primary", database]
    told = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return told.stdout.decode(errors="replace").splitlines() if told.returncode == 0 else []


async def removed(panel: PanelPrograms, root: httpx.AsyncClient, site: dict[str, Any]) -> dict[str, Any]:
    before = await databases(panel)
    # MariaDB is stopped with its last database: another site's lets it answer when this one is gone.
    other = await panel.site("other.example.com", "bob@example.com")
    kept = await root.post("/databases", json={"site_id": other["id"], "engine": "mariadb", "name": "kept"})
    assert kept.status_code < 300, kept.text
    answer = (await root.request("DELETE", f"/sites/{site['id']}", json={"confirm": DOMAIN})).json()
    return {
        "removal": await ended(root, answer),
        "left": [path.name for path in (panel.data / "sites").iterdir() if path.name != other["account"]],
        "databases": (before, [name for name in await databases(panel) if site["account"] in name]),
    }


async def databases(panel: PanelPrograms) -> list[str]:
    """Databases and users of the site, as MariaDB names them."""
    told = await asked(
        panel, "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA UNION ALL SELECT User FROM mysql.global_priv"
    )
    return [name for name in told.split() if re.search(r"s\d+_", name)]


async def asked(panel: PanelPrograms, statements: str) -> str:
    """What MariaDB answers root."""
    [socket] = [path for path in panel.data.rglob("mysqld.sock") if path.is_socket()]
    command = ["mariadb", "--no-defaults", f"--socket={socket}", "--batch", "--skip-column-names"]
    told = await trio.run_process([*command, "--execute", statements], capture_stdout=True)
    return told.stdout.decode()


def visitor(panel: PanelPrograms, trust: ssl.SSLContext) -> httpx.AsyncClient:
    """A browser of its own, which finds the site at this server."""
    return httpx.AsyncClient(transport=AtThisServer(trust), base_url=f"https://{DOMAIN}:{panel.https_port}", timeout=60)


class AtThisServer(httpx.AsyncHTTPTransport):
    """Goes to 127.0.0.1 whatever the host is, and says which host it means."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        super().__init__(verify=trust)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        there = httpx.Request(
            request.method,
            request.url.copy_with(host="127.0.0.1"),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return await super().handle_async_request(there)


async def signed_in(panel: PanelPrograms, trust: ssl.SSLContext, password: str) -> httpx.Response:
    """What the form of WordPress answers, by a browser that it has given its test cookie."""
    async with visitor(panel, trust) as browser:
        await browser.get("/wp-login.php")
        return await browser.post("/wp-login.php", data={"log": "ada", "pwd": password, "wp-submit": "Log In"})


async def upload(browser: httpx.AsyncClient) -> httpx.Response:
    page = (await browser.get("/wp-admin/media-new.php")).text
    nonce = re.search(r'"_wpnonce":"([0-9a-f]+)"', page)
    assert nonce is not None, page[:2000]
    return await browser.post(
        "/wp-admin/async-upload.php",
        data={"action": "upload-attachment", "_wpnonce": nonce[1]},
        files={"async-upload": ("pixel.png", PIXEL, "image/png")},
    )


async def job_of(root: httpx.AsyncClient, site_id: str, kind: str) -> dict[str, Any]:
    jobs = (await root.get("/jobs")).json()["items"]
    return next(job for job in jobs if job["site_id"] == site_id and job["kind"] == kind)


async def ended(root: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    with trio.fail_after(240):
        while job["ended_at"] is None:
            await trio.sleep(0.1)  # It goes on outside of this process.
            job = (await root.get(f"/jobs/{job['id']}")).json()
    return job


def path_of(link: dict[str, Any]) -> str:
    return httpx.URL(link["url"]).path


def path_in(uploaded: httpx.Response) -> str:
    return httpx.URL(uploaded.json()["data"]["url"]).path


def test_a_job_makes_it_step_by_step(life: Life) -> None:
    assert life.created["status"] == "creating"
    assert [(step["name"], step["status"]) for step in life.job["steps"]] == [
        (name, "succeeded")
        for name in ("make_account", "place_files", "make_database", "install", "serve", "get_certificate")
    ]


def test_the_front_page_answers_over_https_with_the_title(life: Life) -> None:
    assert life.front.status_code == 200
    assert TITLE in html.unescape(life.front.text)
    assert life.plain.status_code == 301
    assert life.plain.headers["location"].startswith(f"https://{DOMAIN}")


def test_permalinks_work(life: Life) -> None:
    assert life.post.status_code == 200
    assert "Hello world!" in life.post.text


def test_it_says_what_it_is(life: Life) -> None:
    assert life.described["version"].startswith("6.")
    assert life.described["admin_login"] == "ada"
    assert life.described["title"] == TITLE
    assert life.described["url"].startswith(f"https://{DOMAIN}")
    assert life.described["themes"][0]["active"] is True
    assert life.described["maintenance"] is life.described["debug"] is False


def test_what_only_attackers_ask_for_is_not_there(life: Life) -> None:
    assert life.attempted == dict.fromkeys(ATTEMPTED, 404)


def test_its_files_are_its_own_and_its_password_is_for_its_account_alone(life: Life) -> None:
    assert life.configuration == (0o600, FIRST_UID + life.created["number"])
    assert life.links == 0


def test_a_login_link_logs_in_once_and_only_once(life: Life) -> None:
    assert life.dashboard.status_code == 200
    assert life.dashboard.url.path == "/wp-admin/"
    assert "wp-admin-bar-my-account" in life.dashboard.text
    assert life.again.status_code in (403, 404)
    assert not life.again.cookies


def test_a_login_link_whose_time_is_over_logs_nobody_in_and_is_gone(life: Life) -> None:
    assert life.aged.status_code == 403
    assert not life.aged.cookies
    assert life.unused == []


def test_a_picture_is_uploaded_and_shown(life: Life) -> None:
    assert life.uploaded.status_code == 200
    assert life.uploaded.json()["success"] is True
    assert life.picture.headers["content-type"] == "image/png"
    assert life.picture.content == PIXEL


def test_a_password_that_was_reset_signs_in(life: Life) -> None:
    assert life.password.status_code == 302
    assert any(name.startswith("wordpress_logged_in") for name in life.password.cookies)
    assert life.wrong.status_code == 200
    assert not any(name.startswith("wordpress_logged_in") for name in life.wrong.cookies)


def test_maintenance_is_shown_and_ended(life: Life) -> None:
    assert (life.maintained, life.back) == (503, 200)


def test_a_plugin_is_activated_and_deactivated(life: Life) -> None:
    assert [plugin["active"] for plugin in life.plugin] == [True, False]


def test_damaged_in_files_and_database_it_comes_back_byte_for_byte(life: Life) -> None:
    before, damaged, after = life.kept
    assert before.shown == (200, PIXEL)
    assert damaged.shown == (200, b"defaced")
    assert damaged.rows != before.rows
    assert after.shown == before.shown
    assert after.files == before.files
    assert after.rows == before.rows


def test_nothing_of_it_is_left(life: Life) -> None:
    before, after = life.databases
    assert life.removal["status"] == "succeeded", life.removal
    assert len(before) >= 2
    assert after == []
    assert life.left == []


def test_one_that_is_handed_over_goes_on_without_what_its_owner_before_knew(life: Life) -> None:
    handed = life.handed
    (known,), (now,) = handed["passwords"]
    assert handed["job"]["status"] == "succeeded", handed["job"]
    assert handed["told"]["database_users"] == [], "its own is given a password by the job, and keeps serving visitors"
    assert known != now
    assert handed["kept"]
    assert handed["mode"] == 0o600
    assert handed["front"] == 200
    # The form again, as for any wrong password.
    assert handed["by_old_password"] == life.wrong.status_code == 200
    assert handed["administrator"] == "bob@example.com"


def test_it_is_used_by_its_preview_alone_before_its_domain_leads_here(life: Life) -> None:
    seen, host = life.previewed, httpx.URL(life.previewed.url).host
    opened = [*seen.pages.values(), seen.dashboard]

    assert host.startswith("blog-example-com-")
    assert host.endswith(".previews.example.net")
    assert {each.status_code for each in opened} == {200}
    assert {each.url.host for page in opened for each in (page, *page.history)} == {host}
    assert TITLE in html.unescape(seen.pages["/"].text)
    assert "Dashboard" in seen.dashboard.text or "Profile" in seen.dashboard.text
    assert seen.signed_in.status_code == 302
    for page in opened:
        assert not re.search(rf"(?:https?:)?(?://|\\/\\/){re.escape(DOMAIN)}", page.text), page.url
        assert page.headers["X-Robots-Tag"] == "noindex, nofollow"
    assert seen.pages["/robots.txt"].text == "User-agent: *\nDisallow: /\n"
    assert seen.cookies == {host}
    assert {line.split()[0] for line in seen.log} == {"127.0.0.1"}
