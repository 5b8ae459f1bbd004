"""Applications that really run, behind a real nginx."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import trio

from svc_actors.panel.imports.foreign_hosts import ForeignHosts
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_webhost.accounts import SiteAccount
from svc_webhost.apps import AppReleases
from svc_webhost.folders import HostFolders
from svc_webhost.site_logs import log_service
from tests.support.harness import Client
from tests.support.launchers import keeper_place
from tests.support.nginx import Sites, nginx_sites
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import RecordedAccounts


@dataclass
class FolderAccounts(RecordedAccounts):
    """Accounts that are numbers alone, with the folders that real ones have."""

    folders: HostFolders = field(default_factory=lambda: HostFolders(Path("/nonexistent")))

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        await super().make(account, first_page)
        home = self.folders.sites / account.name
        (self.folders.site_logs / account.name).mkdir(parents=True)
        for folder in (home, home / "public", home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, account.uid, account.uid)


@dataclass
class AppWorld:
    panel: PanelHarness
    nginx: Sites
    root: Client

    async def site(self, domain: str, *, runtime: str, entry: str, **values: Any) -> dict[str, Any]:
        """One with a file `version`, which is not started yet."""
        body = {"domain": domain, "type": "app", "runtime": runtime, "entry": entry, **values}
        answer = await self.root.post("/sites", body)
        assert answer.status_code == 201, answer.text
        site: dict[str, Any] = answer.json()
        self.write(site, "version", "one")
        return site

    def write(self, site: dict[str, Any], name: str, text: str) -> None:
        (self.nginx.folders.sites / site["account"] / name).write_text(text)

    async def set_variables(self, site: dict[str, Any], **variables: str) -> None:
        answer = await self.root.call("PUT", f"/sites/{site['id']}/env", {"variables": variables})
        assert answer.status_code == 200, answer.text

    async def order(self, site: dict[str, Any], action: str) -> httpx.Response:
        return await self.root.post(f"/sites/{site['id']}/app/{action}")

    async def started(self, site: dict[str, Any], action: str = "start") -> dict[str, Any]:
        answer = await self.order(site, action)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def nothing_runs(self, site: dict[str, Any]) -> None:
        with trio.fail_after(60):
            while site["number"] in await self.panel.host.apps.running():
                await trio.sleep(0.05)

    @asynccontextmanager
    async def visitor(self, domain: str) -> AsyncIterator[list[str]]:
        """Somebody who asks every 50 ms, each time by a connection of their own; gives every answer."""
        answers: list[str] = []

        async def visit() -> None:
            while True:
                try:
                    page = await self.nginx.visit(domain, Connection="close")
                    answers.append(page.text.split()[0] if page.status_code == 200 else str(page.status_code))
                except httpx.TransportError as error:
                    answers.append(repr(error))
                await trio.sleep(0.05)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(visit)
            yield answers
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_apps(
    panel_database: Database, webhooks: WebhookSettings | None = None, foreign_hosts: ForeignHosts | None = None
) -> AsyncIterator[AppWorld]:
    # Processes are ended by the number of their account, and other panels on this machine begin with the same numbers.
    further = 4000 + os.getpid() % 20_000
    await panel_database.execute("SELECT count(nextval('site_numbers')) FROM generate_series(1, $1::integer)", further)
    async with keeper_place() as place:
        with nginx_sites() as nginx:
            recorded = recorded_host()
            host = replace(
                recorded,
                launcher=place.keeper,
                foreign_hosts=foreign_hosts or recorded.foreign_hosts,
                web=nginx.generations,
                accounts=FolderAccounts(folders=nginx.folders),
                apps=AppReleases(nginx.folders, place.keeper),
            )
            async with open_panel(panel_database, nginx.folders.data, host, webhooks=webhooks, loops=None) as panel:
                await place.launcher.ensure(log_service(nginx.folders))
                yield AppWorld(panel, nginx, await panel.administrator())
