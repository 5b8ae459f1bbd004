"""A panel with a customer, her site example.test, and the name server that it drives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from svc.panel.services import PanelLoop
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from tests.support.dns import RecordedDelegations, RecordedNameServer
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row

SETTINGS = DnsSettings(
    nameservers=("ns1.panel.test", "ns2.panel.test"),
    hostmaster="dns@panel.test",
    addresses=(ip_address("203.0.113.5"), ip_address("2001:db8::5")),
)

A: dict[str, Any] = {"type": "A", "address": "192.0.2.1"}
CNAME: dict[str, Any] = {"type": "CNAME", "target": "host.x.net"}
"""Data of records."""


@dataclass
class World:
    """`ada`, who has the site example.test, and what her panel drives."""

    panel: PanelHarness
    ada_id: UUID
    ada: Client
    site: UUID
    knot: RecordedNameServer
    parents: RecordedDelegations

    async def add(self, name: str, **data: Any) -> httpx.Response:
        return await self.ada.post(f"/sites/{self.site}/dns/records", {"name": name, "data": data})

    async def added(self, name: str, **data: Any) -> str:
        answer = await self.add(name, **data)
        assert answer.status_code == 201, answer.text
        record_id: str = answer.json()["record"]["id"]
        return record_id

    async def compare(self) -> None:
        """A round of the watch, now."""
        await self.panel.step("zones")


@asynccontextmanager
async def dns_world(
    database: Database,
    folder: Path,
    knot: RecordedNameServer | None = None,
    loops: Sequence[PanelLoop] = ("web server",),
) -> AsyncIterator[World]:
    host = recorded_host(knot)
    assert isinstance(host.name_server, RecordedNameServer)
    assert isinstance(host.delegations, RecordedDelegations)
    async with open_panel(database, folder, host, dns=SETTINGS, loops=loops) as panel:
        ada = await panel.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
        site = await panel.database.fetchval("SELECT id FROM sites WHERE domain = 'example.test'")
        if ada is None:
            ada = await panel.person("ada@example.com")
            site = await site_row(panel.database, ada, "example.test")
        yield World(panel, ada, panel.program(await panel.token(ada)), site, host.name_server, host.delegations)
