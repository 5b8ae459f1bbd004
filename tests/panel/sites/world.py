"""A panel with two customers and an administrator, and the server that it drives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from uuid import UUID

from svc.panel.services import PanelLoop
from svc.service.panel.host import Host
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from svc_webhost.nginx import SiteServer
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_sites import RecordedAccounts
from tests.support.served import RecordedServing


@dataclass
class World:
    panel: PanelHarness
    accounts: RecordedAccounts
    web: RecordedServing
    ada: Client
    bob: Client
    root: Client
    ada_id: UUID

    async def create(self, domain: str, by: Client | None = None, **values: Any) -> dict[str, Any]:
        answer = await (by or self.ada).post("/sites", {"domain": domain, "type": "static", **values})
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    async def job_of(self, by: Client, job: dict[str, Any]) -> dict[str, Any]:
        """The job, when it has ended."""
        await self.panel.job_ended(job["id"])
        return cast(dict[str, Any], (await by.get(f"/jobs/{job['id']}")).json())

    async def delete(self, site: dict[str, Any]) -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.ada.delete(f"/sites/{site['id']}", {"confirm": site["domain"]})
        return await self.job_of(self.ada, answer.json())

    def served(self, domain: str) -> SiteServer | None:
        return next((server for server in self.web.sites.values() if server.domain == domain), None)

    async def told(self) -> list[tuple[str, str]]:
        """The webhooks' events: which, and of what."""
        rows = await self.panel.database.fetch("SELECT event, body FROM webhook_events ORDER BY at, event")
        return [(row["event"], row["body"].decode()) for row in rows]


SERVING: Final[tuple[PanelLoop, ...]] = ("jobs", "web server")
"""What a site is created, served and deleted by."""


@asynccontextmanager
async def world_of(
    database: Database,
    folder: Path,
    *,
    people: tuple[str, str] = ("ada@example.com", "bob@example.com"),
    dns: DnsSettings | None = None,
    origins: tuple[str, ...] = (),
    host: Host | None = None,
    loops: Collection[PanelLoop] = (),
) -> AsyncIterator[World]:
    async with open_panel(database, folder, host, dns=dns, origins=origins, loops=(*SERVING, *loops)) as panel:
        ada_id, bob_id = [await panel.person(email) for email in people]
        yield World(
            panel,
            cast(RecordedAccounts, panel.host.accounts),
            cast(RecordedServing, panel.host.web),
            panel.program(await panel.token(ada_id)),
            panel.program(await panel.token(bob_id)),
            await panel.administrator(),
            ada_id,
        )
