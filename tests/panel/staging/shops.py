"""A shop with WordPress and its staging copy, as people order them, on a server that a test plays."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import DatabaseError
from tests.panel.sites.world import World
from tests.panel.wordpress.blogs import made
from tests.support.harness import Client
from tests.support.panel import PanelHarness
from tests.support.recorded_tables import RecordedTables
from tests.support.site_tasks import RecordedTasks

DOMAIN, COPY = "shop.example", "staging.shop.example"
FILES = {
    "index.php": "old index",
    "wp-config.php": "live configuration",
    "wp-content/index.php": "quiet",
    "wp-content/themes/shop/style.css": "old style",
    "wp-content/uploads/old.png": "old picture",
    "wp-content/cache/page.html": "cached",
}
TABLES = {
    "wp_options": "old options",
    "wp_posts": "old posts",
    "wp_postmeta": "old meta",
    "wp_users": "live users",
    "wp_comments": "live comments",
    "wp_wc_orders": "live orders",
}
PUSHED = {**TABLES, "wp_options": "new options", "wp_posts": "new posts", "wp_postmeta": "new meta"}
"""What a push of what `Shop.work` has done makes of the live site's tables."""


@dataclass
class Shop:
    world: World
    site: dict[str, Any]
    by: Client

    @property
    def path(self) -> str:
        return f"/sites/{self.site['id']}/staging"

    @property
    def tables(self) -> RecordedTables:
        return cast(RecordedTables, self.world.panel.host.tables)

    @property
    def tasks(self) -> RecordedTasks:
        return cast(RecordedTasks, self.world.panel.host.tasks)

    @property
    def home(self) -> Path:
        return home_of(self.world, self.site["number"])

    async def copy(self) -> dict[str, Any]:
        """The site that the copy is."""
        shown = (await self.by.get(self.path)).json()
        return cast(dict[str, Any], (await self.world.root.get(f"/sites/{shown['copy_id']}")).json())

    async def ended(self, answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        return await self.world.job_of(self.world.root, answer.json())

    async def staged(self, **values: Any) -> dict[str, Any]:
        """The answer to its creation, when that has ended."""
        answer = await self.by.post(self.path, values)
        job = await self.ended(answer)
        assert job["status"] == "succeeded", job
        return cast(dict[str, Any], answer.json())

    async def push(self, **values: Any) -> dict[str, Any]:
        return await self.ended(await self.by.post(f"{self.path}/push", {"confirm": DOMAIN, **values}))

    async def work(self) -> None:
        """What is done in the copy."""
        copy = await self.copy()
        database = f"{copy['account']}_wordpress"
        self.tables.hold(
            database, {name: text.replace("old", "new") for name, text in self.tables.of(database).items()}
        )
        self.tables.hold(
            database, self.tables.of(database) | {"wp_users": "copied users", "wp_wc_orders": "copied orders"}
        )
        home = home_of(self.world, copy["number"])
        for name, text in {"index.php": "new index", "wp-content/themes/shop/style.css": "new style"}.items():
            put(home, copy["number"], name, text)

    def live(self) -> tuple[dict[str, str], dict[str, str]]:
        """Its files and its tables."""
        public = self.home / "public"
        files = {str(path.relative_to(public)): path.read_text() for path in public.rglob("*") if path.is_file()}
        return files, self.tables.of(f"{self.site['account']}_wordpress")

    def left(self) -> list[str]:
        """What jobs have left on the server."""
        folders = [name for name in os.listdir(self.home.parent) if name.startswith(".")]
        return folders + [name for name in self.tables._contents if name.startswith("s1_")]


def furnish(panel: PanelHarness, number: int) -> None:
    """A site of this number has something in it, and there is a home for the next one."""
    sites = panel.services.config.folders.sites
    for each in (number, number + 1):
        home, uid = sites / f"s{each}", SiteAccount(each).uid
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, uid, uid)
    for name, text in FILES.items():
        put(sites / f"s{number}", number, name, text)
    cast(RecordedTables, panel.host.tables).hold(f"s{number}_wordpress", TABLES)


def home_of(world: World, number: int) -> Path:
    return world.panel.services.config.folders.sites / f"s{number}"


def put(home: Path, number: int, name: str, text: str) -> None:
    """A file of the site, owned as its account's are."""
    file = home / "public" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    uid = SiteAccount(number).uid
    for each in (file, *file.parents):
        os.chown(each, uid, uid)
        if each == home:
            break


async def shop(world: World, by: Client | None = None, domain: str = DOMAIN) -> Shop:
    """One that visitors can open, with something in it."""
    site = await made(world, domain, by)
    furnish(world.panel, site["number"])
    return Shop(world, site, by or world.ada)


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
