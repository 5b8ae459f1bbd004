"""A panel whose checks of health look at a server that a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from svc_actors.panel.databases.agreeing import SiteDatabases
from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.checks import Checks
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Service, ServiceName, ServiceStatus
from svc_webhost.site_runtime import service_name
from tests.support.dns import RecordedNameServer
from tests.support.harness import Client
from tests.support.panel import PanelHarness, RecordedLauncher, RecordedVitals, open_panel, recorded_host
from tests.support.panel_sites import site_row

RESTING = service_name(SiteAccount(1001), "php-8.2")
"""Of a site that nobody visits."""


@dataclass
class Launched(RecordedLauncher):
    """Programs that were started, of which some run no more."""

    dead: tuple[str, ...] = (RESTING,)

    async def status(self, name: ServiceName) -> ServiceStatus:
        return ServiceStatus(running=name not in self.dead)


@dataclass
class World:
    panel: PanelHarness
    root: Client
    site: UUID
    launcher: Launched
    name_server: RecordedNameServer
    vitals: RecordedVitals
    databases: SiteDatabases
    checks: Checks

    @property
    def database(self) -> Database:
        return self.panel.database

    async def sql(self, statement: str, *values: object) -> None:
        await self.database.execute(statement, *values)

    async def health(self, query: str = "") -> dict[str, Any]:
        answer = await self.root.get(f"/health{query}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.database.fetch("SELECT body FROM webhook_events WHERE event = 'health.critical' ORDER BY at")
        return [dict(row) for row in rows]

    async def alerts(self) -> list[str]:
        rows = await self.database.fetch("SELECT key FROM alerts WHERE key LIKE 'health:%' AND closed_at IS NULL")
        return [row["key"] for row in rows]


@asynccontextmanager
async def open_health(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    launcher, name_server, vitals = Launched(), RecordedNameServer(), RecordedVitals()
    host = replace(recorded_host(name_server), launcher=launcher, vitals=vitals)
    async with open_panel(panel_database, tmp_path, host, loops=["health"]) as panel:
        for name in (ServiceName("nginx"), RESTING):
            await launcher.ensure(Service(name, ("/bin/true",)))
        site = await site_row(panel_database, await panel.person("ada@example.com"), "ada.example.com")
        databases = SiteDatabases(panel_database, host.databases)
        busiest = TopConsumers(panel_database, vitals, host.databases, databases.ended, (80, 443))
        checks = Checks(panel_database, launcher, name_server, vitals, host.databases, tmp_path, busiest, relay=True)
        yield World(panel, await panel.administrator(), site, launcher, name_server, vitals, databases, checks)
