"""Licences: verified on the server by the configured key, and asked for by nothing that customers do."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncclick as click
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from svc.cli.failures import Failure
from svc.cli.panel.options import panel_options
from svc.panel.config import PanelConfig
from svc_actors.panel.licensing import SIGNED_AS
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row
from tests.support.site_files import give, site_folder

ISSUER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
YEAR = timedelta(days=365)


@dataclass
class Time:
    now: datetime = NOW

    def __call__(self) -> datetime:
        return self.now


@dataclass
class World:
    panel: PanelHarness
    root: Client
    folder: Path
    time: Time = field(default_factory=Time)

    async def show(self) -> dict[str, Any]:
        answer = await self.root.get("/licensing")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def license(self, key: Ed25519PrivateKey = ISSUER, **values: Any) -> str:
        install_id = await self.panel.database.fetchval("SELECT install_id FROM panel_installation")
        document = {"id": "2026-1", "holder": "Acme Hosting", "edition": "team", "install_id": str(install_id)}
        document |= {"issued_at": NOW.isoformat(), "expires_at": (NOW + YEAR).isoformat()}
        return signed(key, json.dumps(document | values).encode())

    async def install(self, license: str) -> int:
        return (await self.root.call("PUT", "/licensing", {"license": license})).status_code


async def ended(world: World, answer: httpx.Response) -> str:
    """The status of the job, when it has ended."""
    assert answer.status_code == 200, answer.text
    return (await world.panel.job_ended(answer.json()["id"])).status.value


def signed(key: Ed25519PrivateKey, document: bytes, *, over: bytes | None = None) -> str:
    parts = (document, key.sign(SIGNED_AS + (document if over is None else over)))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    time = Time()
    host = replace(recorded_host(), clock=time)
    async with open_panel(
        panel_database, tmp_path, host, license_key=ISSUER.public_key(), loops=["jobs", "web server"]
    ) as panel:
        yield World(panel, await panel.administrator(), tmp_path, time)


async def test_a_panel_without_a_licence_is_a_beta_without_limits(world: World) -> None:
    shown = await world.show()

    assert (shown["edition"], shown["limits"], shown["license"]["state"]) == ("beta", {}, "none")


async def test_a_licence_is_installed_shown_and_removed(world: World) -> None:
    installed = await world.install(await world.license())
    shown = (await world.show())["license"]
    removed = await world.root.delete("/licensing")
    again = await world.root.delete("/licensing")

    assert installed == 200
    assert (shown["state"], shown["holder"], shown["edition"]) == ("valid", "Acme Hosting", "team")
    assert removed.json()["license"]["state"] == "none"
    assert again.status_code == 404


async def test_what_the_issuer_did_not_sign_for_this_panel_is_refused_and_the_one_before_stays(world: World) -> None:
    await world.install(await world.license())
    genuine = await world.license()
    document, _, signature = genuine.partition(".")
    forged = [
        await world.license(Ed25519PrivateKey.generate()),
        await world.license(install_id="0a4c0000-0000-4000-8000-000000000000"),
        await world.license(expires_at=NOW.isoformat()),
        await world.license(expires_at="2027-01-01"),
        signed(ISSUER, b'{"id": "2026-2"}'),
        signed(ISSUER, b"no document"),
        signed(ISSUER, base64.urlsafe_b64decode(document + "=" * (-len(document) % 4)), over=b"something else"),
        f"{document}.{signature[:-4]}",
        f"{document[:-8]}AAAAAAAA.{signature}",
        f"{signature}.{document}",
    ]

    refused = [await world.install(each) for each in forged]

    assert refused == [400] * len(forged)
    assert (await world.show())["license"]["state"] == "valid"


async def test_a_licence_without_an_end_stays_valid(world: World) -> None:
    await world.install(await world.license(expires_at=None))
    world.time.now = NOW + 50 * YEAR

    assert (await world.show())["license"]["state"] == "valid"


async def test_without_a_key_in_the_configuration_none_is_installed(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        world = World(panel, await panel.administrator(), tmp_path)

        assert (await world.show())["can_install"] is False
        assert await world.install(await world.license()) == 409


async def test_a_licence_of_another_key_than_the_configured_one_is_shown_as_invalid(
    world: World, panel_database: Database
) -> None:
    await world.install(await world.license())
    other = Ed25519PrivateKey.generate().public_key()
    async with open_panel(
        panel_database, world.folder / "other", license_key=other, loops=["jobs", "web server"]
    ) as panel:
        shown = await World(panel, world.root, world.folder).show()
        found = (await (await panel.administrator("other@example.com")).get("/licensing")).json()["license"]

    assert shown["license"]["state"] == "valid"
    assert (found["state"], found["holder"]) == ("invalid", None)
    assert "did not sign" in found["problem"]


@pytest.mark.parametrize("state", ["expired", "invalid"])
async def test_a_licence_that_is_over_stops_no_site_backup_restoration_or_export(world: World, state: str) -> None:
    if state == "expired":
        await world.install(await world.license())
        world.time.now = NOW + 2 * YEAR
    else:
        await world.panel.database.execute("INSERT INTO panel_license (file) VALUES ('AAAA.AAAA')")
    ada = await world.panel.person("ada@example.com")
    customer = world.panel.program(await world.panel.token(ada))
    site = str(await site_row(world.panel.database, ada, "ada.example.com"))
    number = await world.panel.database.fetchval("SELECT number FROM sites WHERE id = $1", site)
    give(site_folder(world.folder / "sites", number), "public/index.html", b"content")

    created = await customer.post("/sites", {"domain": "new.example.com", "type": "static"})
    suspended = await customer.post(f"/sites/{site}/suspend", {"suspended": True, "reason": "away"})
    resumed = await customer.post(f"/sites/{site}/suspend", {"suspended": False})
    backup = await ended(world, await customer.post(f"/sites/{site}/backups"))
    [kept] = (await customer.get(f"/backups?status=completed&site={site}")).json()["items"]
    restored = await ended(world, await customer.post(f"/backups/{kept['id']}/restore"))
    database = await customer.post("/databases", {"site_id": site, "engine": "mariadb", "name": "shop", "user": "ada"})
    made = database.json()["database"]["id"]
    exported = await ended(world, await customer.post(f"/databases/{made}/export"))

    assert (await world.show())["license"]["state"] == state
    assert [created.status_code, suspended.status_code, resumed.status_code] == [201, 200, 200]
    assert [backup, restored, exported] == ["succeeded"] * 3


async def test_the_configuration_takes_an_ed25519_public_key_and_nothing_else(tmp_path: Path) -> None:
    def pem(name: str, key: Ed25519PublicKey | EllipticCurvePublicKey) -> str:
        file = tmp_path / name
        file.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        return str(file)

    taken: list[PanelConfig] = []

    @click.command(context_settings={"auto_envvar_prefix": "SVC_NO_PANEL"})
    @panel_options
    async def core(config: PanelConfig, environ: Mapping[str, str]) -> None:
        taken.append(config)

    await core.main(["--license-key", pem("issuer", ISSUER.public_key())], standalone_mode=False)
    other = pem("other", generate_private_key(SECP256R1()).public_key())
    with pytest.raises(Failure, match="no Ed25519 public key"):
        await core.main(["--license-key", other], standalone_mode=False)

    [config] = taken
    assert config.license_key is not None
    assert config.license_key.public_bytes_raw() == ISSUER.public_key().public_bytes_raw()
