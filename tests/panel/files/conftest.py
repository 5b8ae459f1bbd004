"""A panel with two customers, a site of each, and their folders on this server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import httpx
import pytest

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined_client import SiteFolder
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.site_files import site_folder


class Program(Client):
    """A program with a token, which also puts, and asks with a query."""

    @classmethod
    def of(cls, client: Client) -> Program:
        return cls(client.http, client.headers)

    async def read(self, path_: str, **query: str) -> httpx.Response:
        return await self.call("GET", f"{path_}?{urlencode(query)}" if query else path_)

    async def put(self, path: str, body: Any) -> httpx.Response:
        return await self.call("PUT", path, body)


@dataclass
class Files:
    panel: PanelHarness
    ada: Program
    site: UUID
    folder: SiteFolder
    other: Program
    other_site: UUID
    other_folder: SiteFolder

    @property
    def home(self) -> Path:
        return self.folder.path

    def path(self, action: str = "") -> str:
        return f"/sites/{self.site}/files{action}"


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Files]:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path, loops=["jobs"]) as panel:
        ada = await panel.person("ada@example.com")
        bob = await panel.person("bob@example.com")
        site, number = await a_site(panel_database, ada, "ada.example.com")
        other_site, other_number = await a_site(panel_database, bob, "bob.example.com")
        yield Files(
            panel,
            Program.of(panel.program(await panel.token(ada))),
            site,
            site_folder(tmp_path / "sites", number),
            Program.of(panel.program(await panel.token(bob))),
            other_site,
            site_folder(tmp_path / "sites", other_number),
        )


async def a_site(database: Database, owner: UUID, domain: str, status: str = "active") -> tuple[UUID, int]:
    async with database.transaction() as tx:
        row = await tx.fetchone(
            "INSERT INTO sites (owner_id, domain, type, status) VALUES ($1, $2, 'static', $3) RETURNING id, number",
            owner,
            domain,
            status,
        )
        await tx.execute(
            "INSERT INTO site_domains (site_id, name, registrable) VALUES ($1, $2, 'example.com')", row["id"], domain
        )
    return row["id"], row["number"]
