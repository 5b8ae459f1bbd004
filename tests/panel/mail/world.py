"""A panel with a site whose programs are processes of this test, and a relay that takes what it sends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final
from uuid import UUID

import pytest
import trio

from svc.panel.services import PanelLoop
from svc_actors.mail import MailSettings
from svc_actors.panel.mail import intake
from svc_actors.panel.sites.records import SiteRow, lock_site
from svc_actors.store import Database
from svc_webhost.folders import HostFolders
from svc_webhost.mail import sendmail, socket_of
from tests.support.panel import PanelHarness, open_panel
from tests.support.panel_sites import site_row
from tests.support.smtp import MailServer, mail_server

DOMAIN = "shop.example"
INTAKE: Final[PanelLoop] = "mail of sites"
MESSAGE = "From: Shop <info@shop.example>\nTo: bob@example.net\nSubject: Order\n\nThanks.\n"
_TRANSPORT_SECONDS = 30.0


@dataclass
class SiteMailWorld:
    panel: PanelHarness
    database: Database
    relay: MailServer
    folder: Path
    site: SiteRow
    owner: UUID
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folders(self) -> HostFolders:
        return HostFolders(self.folder)

    @property
    def spooled(self) -> list[str]:
        return sorted(os.listdir(self.folders.mail_spool))

    async def send(
        self, message: str | BinaryIO = MESSAGE, *arguments: str, folder: Path | None = None
    ) -> CompletedProcess[bytes]:
        """What the program does, which a site's program runs."""
        return await trio.run_process(
            [str(sendmail(self.folders)), *(arguments or ("-t", "-i"))],
            stdin=message.encode() if isinstance(message, str) else message.fileno(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder)},
            cwd=folder or self.folder,
        )

    async def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in await self.database.fetch("SELECT * FROM site_mails ORDER BY accepted_at, id")]

    async def limit(self, per_hour: int | None, per_day: int | None = None) -> None:
        await self.database.execute(
            """INSERT INTO site_mail_settings (site_id, mails_per_hour, mails_per_day) VALUES ($1, $2, $3)
               ON CONFLICT (site_id) DO UPDATE SET mails_per_hour = $2, mails_per_day = $3""",
            self.site.id,
            per_hour,
            per_day,
        )

    async def alerts(self, key: str) -> list[str]:
        rows = await self.database.fetch("SELECT message FROM alerts WHERE key = $1 AND closed_at IS NULL", key)
        return [row["message"] for row in rows]

    async def step(self, loop: PanelLoop) -> None:
        await self.panel.step(loop)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[trio.SocketStream]:
        """A connection as the program has it."""
        stream = await trio.open_unix_socket(str(socket_of(self.folders)))
        async with stream:
            yield stream


async def read_line(stream: trio.abc.ReceiveStream) -> bytes:
    """A line, or what came of one before the end."""
    line = b""
    with trio.fail_after(_TRANSPORT_SECONDS):
        while not line.endswith(b"\n"):
            piece = await stream.receive_some(4096)
            if not piece:
                break
            line += piece
    return line


@asynccontextmanager
async def site_mail_world(
    database: Database, monkeypatch: pytest.MonkeyPatch, *, configured: bool = True
) -> AsyncIterator[SiteMailWorld]:
    """In a folder of its own, since the path of a socket has 107 bytes at most, and the folder of a test may have
    more."""
    with TemporaryDirectory(prefix="svc-mail-") as made:
        async with _world_in(Path(made), database, monkeypatch, configured=configured) as world:
            yield world


@asynccontextmanager
async def _world_in(
    folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch, *, configured: bool
) -> AsyncIterator[SiteMailWorld]:
    async with mail_server() as relay:
        mail: MailSettings | None = relay.settings() if configured else None
        async with open_panel(database, folder, mail=mail, loops=(INTAKE,)) as panel:
            owner = await panel.person("ada@example.com")
            site_id = await site_row(database, owner, DOMAIN)
            site = await database.transact(lambda tx: lock_site(tx, site_id))
            # Processes of this test are those of the site's account.
            monkeypatch.setattr(intake, "FIRST_UID", os.getuid() - site.number)
            with trio.fail_after(_TRANSPORT_SECONDS):
                while not socket_of(HostFolders(folder)).exists():
                    await trio.sleep(0.01)  # A thread makes it.
            yield SiteMailWorld(panel, database, relay, folder, site, owner)
