"""A panel with two customers and a site of each, with engines that a test plays."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import httpx
import trio

from svc_actors.store import Database
from svc_webhost.databases import EngineKind
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_sites import site_row
from tests.support.recorded_databases import RecordedDatabases


@dataclass
class World:
    panel: PanelHarness
    ada: Client
    bob: Client
    site: UUID
    number: int
    other_site: UUID

    @property
    def mariadb(self) -> RecordedDatabases:
        return cast(RecordedDatabases, self.panel.host.databases[EngineKind.MARIADB])

    @property
    def postgresql(self) -> RecordedDatabases:
        return cast(RecordedDatabases, self.panel.host.databases[EngineKind.POSTGRESQL])

    def name(self, label: str) -> str:
        return f"s{self.number}_{label}"

    @property
    def home(self) -> Path:
        return self.panel.services.config.folders.sites / f"s{self.number}"

    async def create(self, name: str = "shop", **values: Any) -> dict[str, Any]:
        answer = await self.ada.post("/databases", {"site_id": str(self.site), "name": name, **values})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def ended(self, answer: httpx.Response) -> dict[str, Any]:
        """The job that an operation has answered with, when it has ended."""
        assert answer.status_code == 200, answer.text
        job: dict[str, Any] = answer.json()
        assert job["status"] == "queued"
        with trio.fail_after(60), self.panel.services.jobs.watching(job["id"]) as changed:
            while (job := (await self.ada.get(f"/jobs/{job['id']}")).json())["status"] in ("queued", "running"):
                await changed()
        return job

    async def exported(self, database: dict[str, Any]) -> dict[str, Any]:
        job = await self.ended(await self.ada.post(f"/databases/{database['id']}/export", {}))
        assert job["status"] == "succeeded", job
        listed = (await self.ada.get("/databases/exports")).json()
        export: dict[str, Any] = listed["items"][0]
        return export

    def file(self, path: str, content: bytes) -> None:
        """A file of the site."""
        uid = 1_900_000_000 + self.number if os.geteuid() == 0 else os.geteuid()
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.home / path).write_bytes(content)
        for each in (self.home, self.home / path):
            os.chown(each, uid, uid)


@asynccontextmanager
async def world_of(database: Database, folder: Path) -> AsyncIterator[World]:
    async with open_panel(
        database,
        folder,
        loops=[
            "databases to resume",
            "jobs",
            "memory of database sessions (mariadb)",
            "memory of database sessions (postgresql)",
            "web server",
        ],
    ) as panel:
        ada, bob = await panel.person("ada@example.com"), await panel.person("bob@example.com")
        site = await site_row(database, ada, "ada.example.com")
        other_site = await site_row(database, bob, "bob.example.com")
        number = await database.fetchval("SELECT number FROM sites WHERE id = $1", site)
        yield World(
            panel,
            panel.program(await panel.token(ada)),
            panel.program(await panel.token(bob)),
            site,
            number,
            other_site,
        )
