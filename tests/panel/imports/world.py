"""A panel whose sites have folders, and what a customer does to have an archive imported."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from svc.service.panel.host import Host
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import EngineKind
from tests.support.dns import RecordedNameServer
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import RecordedAccounts
from tests.support.recorded_databases import RecordedDatabases


class FolderAccounts(RecordedAccounts):
    """Accounts that have their homes."""

    def __init__(self, sites: Path) -> None:
        super().__init__()
        self.sites = sites

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        await super().make(account, first_page)
        home = self.sites / account.name
        for folder in (home, home / "public", home / "private"):
            folder.mkdir(parents=True, exist_ok=True)
            os.chown(folder, account.uid, account.uid)
        if first_page is not None and not any((home / "public").iterdir()):
            (home / "public" / "index.html").write_text(first_page)
            os.chown(home / "public" / "index.html", account.uid, account.uid)


@dataclass
class World:
    panel: PanelHarness
    ada: Client
    bob: Client
    root: Client
    data: Path

    @property
    def accounts(self) -> FolderAccounts:
        return cast(FolderAccounts, self.panel.host.accounts)

    @property
    def mariadb(self) -> RecordedDatabases:
        return cast(RecordedDatabases, self.panel.host.databases[EngineKind.MARIADB])

    @property
    def name_server(self) -> RecordedNameServer:
        return cast(RecordedNameServer, self.panel.host.name_server)

    async def uploaded(self, archive: bytes, by: Client | None = None) -> dict[str, Any]:
        """The import, when its archive was read or refused."""
        begun = await self.upload(archive, by)
        await self.job(begun["job_id"], by)
        return cast(dict[str, Any], (await (by or self.ada).get(f"/imports/{begun['id']}")).json())

    async def upload(self, archive: bytes, by: Client | None = None) -> dict[str, Any]:
        """The import, whose archive has come."""
        client = by or self.ada
        began = await client.post("/imports/upload", {"name": "backup.tar.gz", "size": len(archive)})
        assert began.status_code == 201, began.text
        path = f"/imports/{began.json()['id']}"
        for offset in range(0, len(archive), began.json()["chunk_bytes"]):
            part = archive[offset : offset + began.json()["chunk_bytes"]]
            put = await client.call(
                "PUT", f"{path}/upload", {"offset": offset, "data_base64": base64.b64encode(part).decode()}
            )
            assert put.status_code == 200, put.text
        finished = await client.post(f"{path}/upload/finish", {"sha256": hashlib.sha256(archive).hexdigest()})
        assert finished.status_code == 200, finished.text
        return cast(dict[str, Any], finished.json())

    async def applied(self, imported: dict[str, Any], **choices: Any) -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.ada.post(f"/imports/{imported['id']}/apply", choices)
        assert answer.status_code == 200, answer.text
        return await self.job(answer.json()["id"])

    async def shown(self, imported: dict[str, Any]) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.ada.get(f"/imports/{imported['id']}")).json())

    async def job(self, job_id: int, by: Client | None = None) -> dict[str, Any]:
        await self.panel.job_ended(job_id)
        return cast(dict[str, Any], (await (by or self.ada).get(f"/jobs/{job_id}")).json())

    async def site(self, domain: str) -> dict[str, Any]:
        found = (await self.ada.get(f"/sites?q={domain}")).json()["items"]
        return cast(dict[str, Any], next(site for site in found if site["domain"] == domain))

    def home(self, site: dict[str, Any]) -> Path:
        return self.data / "sites" / f"s{site['number']}"


@asynccontextmanager
async def world_of(
    database: Database, folder: Path, host: Host | None = None, *, new: bool = False, **settings: Any
) -> AsyncIterator[World]:
    """`host`: that of an earlier world with the same database and folder, where this is not the first. `settings`:
    those of `open_panel`."""
    server = host or replace(recorded_host(), accounts=FolderAccounts(folder / "sites"))
    async with open_panel(database, folder, server, loops=["jobs", "web server"], **settings) as panel:
        if host is None or new:
            ada, bob = await panel.person("ada@example.com"), await panel.person("bob@example.com")
            await panel.person("root@example.com", "administrator")
        else:
            ada, bob = [
                await database.fetchval("SELECT id FROM users WHERE email = $1", f"{name}@example.com")
                for name in ("ada", "bob")
            ]
        root = await database.fetchval("SELECT id FROM users WHERE email = 'root@example.com'")
        yield World(
            panel,
            panel.program(await panel.token(ada)),
            panel.program(await panel.token(bob)),
            panel.program(await panel.token(root)),
            folder,
        )
