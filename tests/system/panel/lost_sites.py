"""Ten sites of two customers on a server that will be lost, and what is to be the same of them on the next one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from svc_actors.panel.certificates.served import VisitorAddress, shown_at
from svc_webhost.accounts import FIRST_UID
from svc_webhost.confined_client import SiteFolder
from tests.support.certificates import self_signed
from tests.support.panel_programs import PanelPrograms
from tests.support.site_files import give

ADA, BOB = "ada@example.com", "bob@example.com"
PASSWORDS: Final = {ADA: "Correct-Horse-42", BOB: "Battery-Staple-43"}
FIRST, BLOG, DAMAGED = "first.example.com", "blog.example.com", "damaged.example.com"
"""The first site of the server, the second one, which is a WordPress, and one that comes after both."""
_APP: Final = {"type": "app", "runtime": "python", "entry": "app:application"}
SITES: Final[Mapping[str, tuple[str, dict[str, str]]]] = {
    FIRST: (ADA, {}),
    BLOG: (ADA, {"type": "wordpress", "title": "What Ada saw at sea"}),
    DAMAGED: (ADA, {}),
    "php.example.com": (ADA, {"type": "php"}),
    "plain.example.com": (ADA, {}),
    "shop.example.net": (BOB, {"type": "php"}),
    "app.example.net": (BOB, _APP),
    "static.example.net": (BOB, {}),
    "docs.example.net": (BOB, {}),
    "news.example.net": (BOB, {}),
}
CERTIFIED: Final = (DAMAGED, "php.example.com", "app.example.net", "static.example.net")
"""The sites that have a certificate of their own, and are served by HTTPS."""
_PHP: Final = "<?php echo $_SERVER['SERVER_NAME'], ' ', 6 * 7;"
_WSGI: Final = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield f"an application at {environ['HTTP_HOST']}".encode()
"""
Tree = dict[str, tuple[int, int, bytes | str]]


@dataclass(frozen=True)
class Lost:
    """`tokens` are by their owner, all else by the domain. `repositories` are the names that they have at the target;
    `authorities` are what a browser has to trust that opens the site."""

    key: str
    tokens: dict[str, str]
    sites: dict[str, dict[str, Any]]
    repositories: dict[str, str]
    trees: dict[str, Tree]
    pages: dict[str, str]
    authorities: dict[str, str]
    certificates: dict[str, str | None]


async def asked(panel: PanelPrograms, method: str, address: str, token: str | None = None, **body: Any) -> Any:
    async with panel.client(token) as client:
        answer = await client.request(method, address, json=body if method != "GET" else None)
    assert answer.status_code < 300, answer.text
    return answer.json()


async def ended(panel: PanelPrograms, job_id: int) -> dict[str, Any]:
    with trio.fail_after(240):
        while (job := await asked(panel, "GET", f"/jobs/{job_id}"))["ended_at"] is None:
            await trio.sleep(0.1)  # Another process does it.
    found: dict[str, Any] = job
    return found


async def settled(panel: PanelPrograms) -> None:
    """Every job has succeeded."""
    for job in (await asked(panel, "GET", "/jobs?page_size=100"))["items"]:
        done = await ended(panel, job["id"])
        assert done["status"] == "succeeded", done["error"]


async def a_life(panel: PanelPrograms, disk: Path, scratch: Path) -> Lost:
    """Customers, their sites, backups and a manifest on `disk`. Backups, which the server makes one at a time, begin
    while there are further sites to make."""
    tokens = {}
    for email, password in PASSWORDS.items():
        await panel.customer(email, password)
    for person in (await asked(panel, "GET", "/users"))["items"]:
        if person["email"] in PASSWORDS:
            given = await asked(panel, "POST", f"/users/{person['id']}/tokens", name="program", days=0)
            tokens[person["email"]] = given["token"]
    await asked(panel, "POST", "/backups/targets/local", name="disk", path=str(disk))
    key = (await asked(panel, "POST", "/recovery/key"))["recovery_key"]
    sites: dict[str, dict[str, Any]] = {}
    pages: dict[str, str] = {}
    authorities: dict[str, str] = {}

    async def made(domain: str) -> None:
        owner, values = SITES[domain]
        sites[domain] = await panel.site(domain, owner, **values)

    async def furnished(domain: str) -> None:
        if domain not in sites:
            await made(domain)
        await _furnish(panel, sites[domain])
        if domain in CERTIFIED:
            authorities[domain] = await _certify(panel, sites[domain], scratch / domain)
        pages[domain] = await page_of(panel, domain, authorities)
        await asked(panel, "POST", f"/sites/{sites[domain]['id']}/backups")

    for domain in (FIRST, BLOG):  # They get their numbers in this order, by which sites come back.
        await made(domain)
    async with trio.open_nursery() as nursery:
        for domain in SITES:
            nursery.start_soon(furnished, domain)
    await settled(panel)
    certificates = await shown(panel)
    await asked(panel, "POST", "/recovery/manifest")
    await settled(panel)
    repositories = {each["domain"]: each["id"] for each in await asked(panel, "GET", "/backups/keys")}
    return Lost(key, tokens, sites, repositories, trees(panel, sites), pages, authorities, certificates)


async def _furnish(panel: PanelPrograms, site: dict[str, Any]) -> None:
    """Give a site what is its own."""
    domain, uid = site["domain"], FIRST_UID + site["number"]
    home = SiteFolder(home_of(panel, site), uid, uid)
    if site["type"] == "wordpress":
        [job] = (await asked(panel, "GET", f"/jobs?site={site['id']}"))["items"]
        assert (await ended(panel, job["id"]))["status"] == "succeeded", job
    give(home, "private/data.bin", os.urandom(100_000))
    match site["type"]:
        case "static":
            give(home, "public/index.html", f"the page of {domain}".encode())
        case "php":
            (home.path / "public" / "index.html").unlink(missing_ok=True)
            give(home, "public/index.php", _PHP.encode())
        case "app":
            give(home, "app.py", _WSGI.encode())
            await asked(panel, "POST", f"/sites/{site['id']}/app/start")
        case "wordpress":
            await panel.visit(domain)  # It makes folders at the first one.
            _month_of_uploads(home)


async def _certify(panel: PanelPrograms, site: dict[str, Any], scratch: Path) -> str:
    """Give a site a certificate of its own; which it is."""
    scratch.mkdir()
    own = self_signed(scratch, [site["domain"]])
    certificate = own.certificate.read_text()
    await asked(panel, "PUT", f"/sites/{site['id']}/ssl", certificate=certificate, key=own.key.read_text())
    return certificate


def _month_of_uploads(home: SiteFolder) -> None:
    """The folder of this month's uploads, which WordPress makes whenever something first asks for it."""
    folder = home.path / "public" / "wp-content" / "uploads"
    for part in ("", *datetime.now(UTC).strftime("%Y %m").split()):
        folder /= part
        if not folder.exists():
            folder.mkdir()
            os.chown(folder, home.uid, home.gid)


def home_of(panel: PanelPrograms, site: dict[str, Any]) -> Path:
    home: Path = panel.data / "sites" / site["account"]
    return home


def trees(panel: PanelPrograms, sites: Mapping[str, dict[str, Any]]) -> dict[str, Tree]:
    return {domain: _tree(home_of(panel, site)) for domain, site in sites.items()}


def _tree(home: Path) -> Tree:
    found: Tree = {}
    for path in sorted(home.rglob("*")):
        seen = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        if not path.name.startswith(".svc-tmp"):
            found[str(path.relative_to(home))] = (seen.st_mode, seen.st_uid, content)
    return found


async def shown(panel: PanelPrograms) -> dict[str, str | None]:
    """The certificates that visitors are shown."""
    serving = VisitorAddress("127.0.0.1", panel.https_port)
    return {domain: await shown_at(serving, domain) for domain in CERTIFIED}


async def page_of(panel: PanelPrograms, domain: str, authorities: Mapping[str, str]) -> str:
    """What a site answers; without ports, as each server listens on others."""
    answer = await panel.visit(domain, trusted=authorities.get(domain))
    return f"{answer.status_code} " + re.sub(rf"({re.escape(domain)}):[0-9]+", r"\1", answer.text)


async def own_sites(panel: PanelPrograms, email: str) -> set[str]:
    """Which sites a customer sees who signs in with the password, in a browser."""
    origin = f"https://localhost:{panel.port}"
    headers = {"Origin": origin, "X-Service-Request": "1"}
    async with httpx.AsyncClient(base_url=f"{origin}/api/v1", verify=False, headers=headers, timeout=60) as browser:
        answer = await browser.post("/auth/login", json={"email": email, "password": PASSWORDS[email]})
        assert answer.status_code == 200, answer.text
        sites = (await browser.get("/sites", params={"page_size": 50})).json()["items"]
    return {site["domain"] for site in sites}
