"""A panel with two customers, a site of each with files, and an administrator; which restic it has, a test says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from svc_actors.panel.backups import Allowed, Backups, ConfigurationRestore, DatabaseBackups, Places, Tools
from svc_actors.panel.databases import SiteDatabases
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_webhost.confined_client import SiteFolder
from svc_webhost.databases import DatabaseServers
from svc_webhost.folders import HostFolders
from svc_webhost.restic import Restic
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row
from tests.support.site_files import give, site_folder


@dataclass
class Backed:
    panel: PanelHarness
    folder: Path
    restic: Restic
    root: Client
    ada: Client
    site: UUID
    home: SiteFolder
    bob: Client
    other_site: UUID

    async def ended(self, answer: Any) -> dict[str, Any]:
        """The job that was answered, once it has ended."""
        assert answer.status_code < 300, answer.text
        return await self.job(answer.json()["id"])

    async def job(self, job_id: int) -> dict[str, Any]:
        with trio.fail_after(240), self.panel.services.jobs.watching(job_id) as changed:
            while True:
                job: dict[str, Any] = (await self.root.get(f"/jobs/{job_id}")).json()
                if job["ended_at"] is not None:
                    return job
                await changed()

    async def done(self, answer: Any) -> dict[str, Any]:
        """The job that was answered, which has succeeded."""
        job = await self.ended(answer)
        assert job["status"] == "succeeded", job
        return job

    async def backup(self) -> dict[str, Any]:
        """A backup of the site that is completed."""
        await self.done(await self.ada.post(f"/sites/{self.site}/backups"))
        return await self.newest()

    async def newest(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.root.get(f"/backups?site={self.site}")).json()["items"][0]
        return found

    async def round(self) -> None:
        """What the panel does by itself every half minute, now."""
        for work in self.backups().rounds().values():
            await work()

    def backups(self) -> Backups:
        """Such as the panel has, but that it restores nothing."""
        tools = Tools(
            self.panel.database,
            Sealer(bytes(32)),
            self.restic,
            Places(HostFolders(self.folder)),
            DatabaseBackups(self.panel.database, SiteDatabases(self.panel.database, self.panel.host.databases)),
        )
        services = self.panel.services
        configuration = ConfigurationRestore(
            self.panel.database, services.actors, services.certificates, nothing_is_restored, Sealer(bytes(32))
        )
        return Backups(tools, services.files, configuration, self.panel.host.accounts)

    async def jobs(self, kind: str) -> list[dict[str, Any]]:
        rows = await self.panel.database.fetch("SELECT id, status FROM jobs WHERE kind = $1 ORDER BY id", kind)
        return [dict(row) for row in rows]

    async def quiet(self) -> None:
        """Every job has ended."""
        for row in await self.panel.database.fetch("SELECT id FROM jobs ORDER BY id"):
            await self.job(row["id"])

    async def events(self) -> list[str]:
        rows = await self.panel.database.fetch("SELECT event FROM webhook_events ORDER BY at")
        return [row["event"] for row in rows if row["event"].startswith("backup.")]

    def tree(self) -> dict[str, tuple[int, int, bytes | str]]:
        """Everything that the site has: its mode, its owner, and its content."""
        found: dict[str, tuple[int, int, bytes | str]] = {}
        for path in sorted(self.home.path.rglob("*")):
            name, seen = str(path.relative_to(self.home.path)), path.lstat()
            if not name.startswith(".svc-tmp"):
                content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
                found[name] = (seen.st_mode, seen.st_uid, content)
        return found

    def left(self) -> list[str]:
        """What jobs should have removed."""
        work, sites = self.folder / "backups" / "work", self.folder / "sites"
        return [str(path) for path in (*work.glob("*"), *sites.glob(".restore-*"))]


async def nothing_is_restored() -> Allowed:
    raise AssertionError("a round restores nothing")


@asynccontextmanager
async def open_backed(
    database: Database, folder: Path, restic: Restic, databases: DatabaseServers | None = None
) -> AsyncIterator[Backed]:
    host = replace(recorded_host(), restic=restic)
    host = replace(host, databases=databases or host.databases)
    async with open_panel(
        database,
        folder,
        host,
        loops=[
            "jobs",
            "web server",
            "backups of former sites",
            "backups that are due",
            "data of backups",
            "databases of drills",
            "drills of backups",
            "leftovers of backups",
        ],
    ) as panel:
        ada, bob = await panel.person("ada@example.com"), await panel.person("bob@example.com")
        site = await site_row(database, ada, "ada.example.com")
        other_site = await site_row(database, bob, "bob.example.com", registrable="bob.example.com")
        numbers = [await database.fetchval("SELECT number FROM sites WHERE id = $1", one) for one in (site, other_site)]
        home, _ = [site_folder(folder / "sites", number) for number in numbers]
        give(home, "public/index.html", b"<h1>Ada</h1>").chmod(0o640)
        give(home, "public/logo.png", bytes(range(256)))
        give(home, "private/secret.txt", b"hush").chmod(0o600)
        yield Backed(
            panel,
            folder,
            restic,
            await panel.administrator(),
            panel.program(await panel.token(ada)),
            site,
            home,
            panel.program(await panel.token(bob)),
            other_site,
        )
