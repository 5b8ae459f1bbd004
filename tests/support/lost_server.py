"""A panel's server that is lost, and new ones: each with a data folder and a database of its own, and the same restic,
whose repositories outside of those folders are elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from svc.service.panel.recovery import Recovering
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.panel.recovery.staged import become_staged
from svc_actors.panel.recovery.writing import Manifests, sealing_key_of
from svc_actors.sealing import Sealer
from svc_actors.store import Database, DatabaseUrls
from svc_actors.store.embedded import OWNER_ROLE, SERVICE_ROLE
from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import DatabaseServers
from svc_webhost.restic import Restic
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import RecordedAccounts, site_row
from tests.support.site_files import give, site_folder


@dataclass
class HomeAccounts(RecordedAccounts):
    """Those that have a home."""

    sites: Path = field(default_factory=Path)

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        await super().make(account, first_page)
        if not (self.sites / account.name).exists():
            site_folder(self.sites, account.number)


@dataclass
class Server:
    panel: PanelHarness
    folder: Path
    root: Client
    reopen: trio.Event
    urls: DatabaseUrls
    restic: Restic

    @property
    def database(self) -> Database:
        return self.panel.database

    async def job(self, job_id: int) -> dict[str, Any]:
        """Once it has ended."""
        with trio.fail_after(120), self.panel.services.jobs.watching(job_id) as changed:
            while True:
                job: dict[str, Any] = (await self.root.get(f"/jobs/{job_id}")).json()
                if job["ended_at"] is not None:
                    return job
                await changed()

    async def done(self, answer: Any) -> dict[str, Any]:
        assert answer.status_code < 300, answer.text
        job = await self.job(answer.json()["id"])
        assert job["status"] == "succeeded", job
        return job

    async def site(self, owner: UUID, domain: str, files: dict[str, bytes]) -> UUID:
        site = await site_row(self.database, owner, domain)
        home = site_folder(self.folder / "sites", await self.number(site))
        for name, content in files.items():
            give(home, name, content).chmod(0o640)
        return site

    async def number(self, site: UUID) -> int:
        number: int = await self.database.fetchval("SELECT number FROM sites WHERE id = $1", site)
        return number

    def files(self, number: int) -> dict[str, bytes]:
        home = self.folder / "sites" / f"s{number}"
        return {
            str(path.relative_to(home)): path.read_bytes()
            for path in sorted(home.rglob("*"))
            if path.is_file() and not path.name.startswith(".svc-tmp")
        }

    async def target(self, path: Path) -> str:
        """A folder of this server that backups are copied to."""
        path.mkdir(exist_ok=True)
        answer = await self.root.post("/backups/targets/local", {"name": "disk", "path": str(path)})
        assert answer.status_code == 201, answer.text
        target: str = answer.json()["id"]
        return target

    async def key(self) -> str:
        answer = await self.root.post("/recovery/key", {})
        assert answer.status_code == 201, answer.text
        key: str = answer.json()["recovery_key"]
        return key

    async def recovery(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.root.get("/recovery")).json()
        return answer

    def manifests(self) -> Manifests:
        """What the panel does by itself every minute."""
        services = self.panel.services
        recovering = Recovering(self.urls.owner, self.reopen)
        return Manifests(
            self.database,
            services.sealer,
            sealing_key_of(self.folder),
            services.manifests,
            recovering.dump,
            services.config.dns.site_addresses,
        )


@dataclass
class Hosting:
    """Where servers stand: each call opens what is in a data folder, as a core that starts does."""

    restic: Restic
    accounts: dict[Path, HomeAccounts] = field(default_factory=dict)
    databases: DatabaseServers | None = None

    @asynccontextmanager
    async def open(self, url: str, folder: Path, address: str = "203.0.113.80") -> AsyncIterator[Server]:
        folder.mkdir(exist_ok=True)
        urls = DatabaseUrls(owner=url.replace(f"//{SERVICE_ROLE}@", f"//{OWNER_ROLE}@", 1), service=url)
        dns = DnsSettings(addresses=(ip_address(address),))
        await become_staged(folder, urls, dns.site_addresses())
        sealer = Sealer.from_file(folder / "secret.key")
        accounts = self.accounts.setdefault(folder, HomeAccounts(sites=folder / "sites"))
        host = replace(recorded_host(), restic=self.restic, accounts=accounts)
        host = replace(host, databases=self.databases or host.databases)
        reopen = trio.Event()
        async with Database.open(urls.service, size=12) as database:
            recovering = Recovering(urls.owner, reopen)
            async with open_panel(
                database, folder, host, sealer=sealer, recovering=recovering, dns=dns, loops=None
            ) as panel:
                known = await database.fetchval("SELECT id FROM users WHERE email = 'root@example.com'")
                root = panel.program(await panel.token(known)) if known else await panel.administrator()
                yield Server(panel, folder, root, reopen, urls, self.restic)
