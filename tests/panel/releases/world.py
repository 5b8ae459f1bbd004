"""A panel that its package installed, and a folder in which newer releases of it are offered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from svc_actors.panel.releases.manifest import FILE, Manifest, signed
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.watch import ALERT, ReleaseWatch
from svc_actors.store import Database
from svc_webhost.releases.layout import Releases
from tests.support.harness import Client
from tests.support.own_releases import MAKER, release_tree
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tools.release_archive import make_release


@dataclass
class World:
    """A panel of the release RUNNING, installed by its package, with the folder `offers` as its source of releases."""

    panel: PanelHarness
    root: Client
    folder: Path
    own: OwnRelease
    begun: list[str]

    @property
    def releases(self) -> Releases:
        return self.own.releases

    @property
    def offers(self) -> Path:
        return self.folder / "offers"

    def offer(self, version: str = "1.1.0", *, key: Ed25519PrivateKey = MAKER, check: str = "exit 0") -> Manifest:
        return make_release(release_tree(self.folder / f"tree-{version}", check=check), self.offers, version, key)

    def resign(self, manifest: Manifest, **changed: Any) -> None:
        (self.offers / FILE).write_text(signed(manifest.model_copy(update=changed), MAKER))

    async def show(self) -> dict[str, Any]:
        answer = await self.root.get("/updates/panel")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ordered(self, what: str = "install") -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.root.post(f"/updates/panel/{what}")
        assert answer.status_code == 200, answer.text
        return await self.ended(answer.json())

    async def ended(self, job: dict[str, Any]) -> dict[str, Any]:
        await self.panel.job_ended(job["id"])
        ended: dict[str, Any] = (await self.root.get(f"/jobs/{job['id']}")).json()
        return ended

    async def settled(self) -> dict[str, Any]:
        """What is shown once the core has looked at what became of the trial."""
        await ReleaseWatch(self.panel.database, self.own, offered=True).round()
        return await self.show()

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.panel.database.fetch("SELECT body FROM webhook_events WHERE event = 'update.installed'")
        return [json.loads(bytes(row["body"]))["data"] for row in rows]

    async def alerts(self) -> list[str]:
        rows = await self.panel.database.fetch("SELECT message FROM alerts WHERE key = $1 AND closed_at IS NULL", ALERT)
        return [row["message"] for row in rows]


@asynccontextmanager
async def opened(
    database: Database, folder: Path, own: OwnRelease, email: str = "root@example.com"
) -> AsyncIterator[World]:
    begun: list[str] = []

    async def begin() -> None:
        begun.append("switch")

    mine = replace(own, begin_switch=begin)
    host = replace(recorded_host(), own_release=mine)
    async with open_panel(
        database,
        folder,
        host,
        update_source=str(folder / "offers"),
        loops=["jobs", "releases of the panel", "trials of releases"],
    ) as panel:
        yield World(panel, await panel.administrator(email), folder, mine, begun)
