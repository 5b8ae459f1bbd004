"""Every event that sites, certificates, backups and jobs cause: caused for real, delivered, verified, and flat."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, cast

import pytest
import stripe
import trio

from svc_actors.certificates import AcmeSettings
from svc_actors.panel.health import CheckName, HealthStatus
from svc_actors.panel.health.records import Finding
from svc_actors.panel.health.watch import HealthWatch
from svc_actors.panel.webhooks import WebhookEvent
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_webhost.accounts import SiteAccount
from svc_webhost.packages import PackageUpdate
from tests.support.acme_authority import DIRECTORY, FakeAuthority
from tests.support.harness import Client
from tests.support.packages import RecordedPackages
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row
from tests.support.restic import RecordedRestic, failing
from tests.support.site_files import give, site_folder
from tests.support.webhooks import Receiver, leads_here, open_receiving

MARKER: Final = "PLANTED-BY-A-CUSTOMER"
ACME = AcmeSettings("ops@example.com", (), terms_agreed=True, directory=DIRECTORY)
TARGET = {
    "name": "nas",
    "host": "nas.example.com",
    "user": "backup",
    "path": "/srv/backups",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJvd",
}


@dataclass
class World:
    """A site with content, whose owner is ada; `receiver` is told of everything, signed with `secret`."""

    panel: PanelHarness
    root: Client
    ada: Client
    site: str
    restic: RecordedRestic
    authority: FakeAuthority
    receiver: Receiver
    secret: str

    async def told(self, event: WebhookEvent) -> dict[str, Any]:
        """The payload of the next delivery of an event, as the receiver verifies it."""
        with trio.fail_after(60):
            while True:
                request = await self.receiver.next()
                if request.headers["X-Service-Event"] == event:
                    stripe.Webhook.construct_event(request.body, request.signature, self.secret)
                    return request.json()


async def create(world: World) -> None:
    await world.ada.post("/sites", {"domain": "new.example.com", "type": "static"})


async def suspend(world: World) -> None:
    await world.ada.post(f"/sites/{world.site}/suspend", {"suspended": True, "reason": MARKER})


async def unsuspend(world: World) -> None:
    await suspend(world)
    await world.ada.post(f"/sites/{world.site}/suspend", {"suspended": False})


async def refuse(world: World) -> None:
    problem = {"type": "urn:ietf:params:acme:error:dns", "detail": "no such name"}
    world.authority.verdict = lambda token, name: problem
    await create(world)


async def back_up(world: World) -> None:
    await world.ada.post(f"/sites/{world.site}/backups")


async def fail_to_back_up(world: World) -> None:
    world.restic.before = failing("backup")
    await back_up(world)


async def fail_to_copy(world: World) -> None:
    await world.root.post("/backups/targets/sftp", TARGET)
    world.restic.before = failing("copy", at="sftp:")
    await back_up(world)


async def fill_the_disk(world: World) -> None:
    async def look(before: HealthStatus) -> Finding:
        return Finding(HealthStatus.CRITICAL, MARKER, 97.0)

    watch = HealthWatch(world.panel.database, {CheckName.DISK: look})
    await watch.round()
    await watch.round()


async def update(world: World) -> None:
    packages = cast(RecordedPackages, world.panel.host.packages)
    packages.offered = [PackageUpdate("nginx", "1.22-1", "1.22-2", security=True)]
    await world.root.post("/updates/install")


CAUSES: Mapping[WebhookEvent, tuple[Callable[[World], Awaitable[None]], set[str]]] = {
    WebhookEvent.SITE_CREATED: (create, {"type"}),
    WebhookEvent.SITE_SUSPENDED: (suspend, {"type", "by"}),
    WebhookEvent.SITE_UNSUSPENDED: (unsuspend, {"type", "by"}),
    WebhookEvent.SSL_ISSUED: (create, {"source", "issuer", "not_after"}),
    WebhookEvent.SSL_FAILED: (refuse, {"names", "error", "served_until", "next_attempt_at"}),
    WebhookEvent.BACKUP_COMPLETED: (back_up, {"site_id", "cause", "files", "bytes"}),
    WebhookEvent.BACKUP_FAILED: (fail_to_back_up, {"site_id", "cause"}),
    WebhookEvent.BACKUP_REMOTE_FAILED: (fail_to_copy, {"site_id", "target_id", "target"}),
    WebhookEvent.JOB_FAILED: (fail_to_back_up, {"kind", "code", "site_id"}),
    WebhookEvent.HEALTH_CRITICAL: (fill_the_disk, {"check", "before", "value"}),
    WebhookEvent.UPDATE_INSTALLED: (update, {"job_id", "packages", "security", "failed", "silent_sites"}),
}
"""What causes each, and what its data say."""


@asynccontextmanager
async def world_of(database: Database, folder: Path) -> AsyncIterator[World]:
    restic, authority = RecordedRestic(), FakeAuthority()
    async with open_receiving(folder) as receiving:
        host = replace(recorded_host(), resolve=leads_here, restic=restic, open_acme=authority.client)
        settings = WebhookSettings(networks=(ip_network("127.0.0.1/32"),), ca_file=receiving.authorities)
        async with open_panel(
            database,
            folder,
            host,
            webhooks=settings,
            acme=ACME,
            loops=["backups that are due", "certificates of sites", "health", "jobs", "web server", "webhooks"],
        ) as panel:
            ada = await panel.person("ada@example.com")
            site = await site_row(database, ada, "ada.example.com")
            number = await database.fetchval("SELECT number FROM sites WHERE id = $1", site)
            give(site_folder(folder / "sites", number), "public/index.html", MARKER.encode())
            root, receiver = await panel.administrator(), await receiving.receiver()
            endpoint = (await root.post("/webhooks", {"url": receiver.url, "events": ["*"]})).json()
            customer = panel.program(await panel.token(ada))
            yield World(panel, root, customer, str(site), restic, authority, receiver, endpoint["secret"])
        receiving.nursery.cancel_scope.cancel()


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("svc_actors.panel.certificates.site_certificates.LOOK_SECONDS", 0.05)
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with world_of(panel_database, tmp_path) as world:
        yield world


@pytest.mark.parametrize("event", CAUSES)
async def test_an_event_is_caused_delivered_and_verified(world: World, event: WebhookEvent) -> None:
    cause, data = CAUSES[event]

    await cause(world)
    payload = await world.told(event)

    assert payload["event"] == event
    assert set(payload["data"]) == data
    assert all(value is None or isinstance(value, str | int | float | bool) for value in payload["data"].values())
    assert MARKER not in json.dumps(payload)
    assert "ada@" not in json.dumps(payload)
