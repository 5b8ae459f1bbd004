"""Certificates of sites by the API: uploaded, refused, taken away, seen."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from svc_actors.certificates import AcmeSettings
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.served import RecordedServing

NOW = datetime.now(UTC)
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def pem_of(key: Key, password: bytes | None = None) -> str:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, encryption).decode()


def certificate(
    key: Key, *names: str, begins: datetime = NOW - timedelta(days=1), ends: datetime = NOW + timedelta(days=30)
) -> str:
    """One that nobody vouches for, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class World:
    panel: PanelHarness
    ada: Client
    bob: Client
    site: dict[str, Any]

    @property
    def path(self) -> str:
        return f"/sites/{self.site['id']}/ssl"

    @property
    def served(self) -> RecordedServing:
        return cast(RecordedServing, self.panel.host.web)

    async def upload(self, chain: str, key: str, by: Client | None = None) -> Any:
        return await (by or self.ada).call("PUT", self.path, {"certificate": chain, "key": key})


@asynccontextmanager
async def world_of(database: Database, folder: Path) -> AsyncIterator[World]:
    async with open_panel(database, folder, loops=["web server"]) as panel:
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "static"})).json()
        yield World(panel, ada, bob, site)


async def test_an_uploaded_certificate_is_served_and_told_of(panel_database: Database, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with world_of(panel_database, tmp_path) as world:
        before = (await world.ada.get(world.path)).json()
        answer = await world.upload(certificate(key, "shop.example.com"), pem_of(key))
        (server,) = world.served.sites.values()
        events = [row["event"] for row in await panel_database.fetch("SELECT event FROM webhook_events")]

        assert before["state"] == "none"
        assert answer.status_code == 200, answer.text
        assert answer.json()["state"] == "active"
        assert answer.json()["source"] == "uploaded"
        assert server.certificate is not None
        assert Path(server.certificate.key).read_text().startswith("-----BEGIN PRIVATE KEY-----")
        assert Path(server.certificate.key).stat().st_mode & 0o777 == 0o600
        assert "ssl.issued" in events


async def test_a_wildcard_covers_names_one_label_below(panel_database: Database, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with world_of(panel_database, tmp_path) as world:
        covered = await world.upload(certificate(key, "*.example.com"), pem_of(key))
        foreign = await world.upload(certificate(key, "*.com"), pem_of(key))

    assert covered.status_code == 200, covered.text
    assert foreign.status_code == 400


async def test_what_cannot_be_served_is_refused_with_the_reason_and_changes_nothing(
    panel_database: Database, tmp_path: Path
) -> None:
    key, other = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    small, odd = rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP192R1())
    good, name = certificate(key, "shop.example.com"), "shop.example.com"
    vectors = {
        "key is not the certificate's": (good, pem_of(other)),
        "encrypted": (good, pem_of(key, b"secret")),
        "not in PEM": ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", pem_of(key)),
        "expired on": (certificate(key, name, begins=NOW - timedelta(9), ends=NOW - timedelta(1)), pem_of(key)),
        "not valid before": (certificate(key, name, begins=NOW + timedelta(1)), pem_of(key)),
        "has no name": (certificate(key), pem_of(key)),
        "not for shop.example.com": (certificate(key, "other.example.com"), pem_of(key)),
        "chain is not in order": (good + certificate(other, "an issuer"), pem_of(key)),
        "at least 2048 bits": (certificate(small, name), pem_of(small)),
        "one of the curves": (certificate(odd, name), pem_of(odd)),
    }
    async with world_of(panel_database, tmp_path) as world:
        await world.upload(good, pem_of(key))
        shown = (await world.ada.get(world.path)).json()["fingerprint"]
        for words, (chain, private) in vectors.items():
            answer = await world.upload(chain, private)
            assert answer.status_code == 400, words
            assert words in answer.json()["error"]["message"], answer.text

        assert (await world.ada.get(world.path)).json()["fingerprint"] == shown


async def test_a_private_key_is_read_back_by_nobody_and_recorded_nowhere(
    panel_database: Database, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    planted = pem_of(key).splitlines()[1]
    async with world_of(panel_database, tmp_path) as world:
        answer = await world.upload(certificate(key, "shop.example.com"), pem_of(key))
        seen = await world.ada.get(world.path)
        rows = await panel_database.fetch("SELECT to_jsonb(a)::text AS row FROM audit AS a")
        kept = await panel_database.fetchval("SELECT encode(sealed_key, 'escape') FROM site_certificates")

    assert planted not in answer.text + seen.text
    assert all(planted not in row["row"] for row in rows)
    assert planted not in kept


async def test_what_an_authority_made_before_a_crash_is_served_by_the_next_core(
    panel_database: Database, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    directory = "https://authority.test/directory"
    async with world_of(panel_database, tmp_path) as world:
        site_id = world.site["id"]
        stale = tmp_path / "certificates" / "s999999"
    stale.mkdir(parents=True)
    sealer = Sealer(bytes(32))
    await panel_database.execute(
        "INSERT INTO acme_accounts (directory, sealed_key, contact) VALUES ($1, 'x', 'ops@example.com')", directory
    )
    await panel_database.execute(
        """INSERT INTO acme_certificates
               (name, directory, names, chain, sealed_key, issuer, not_before, not_after, due_at)
           VALUES ('site:' || $1, $2, '{shop.example.com}', $3, $4, 'test', $5, $6, now() + interval '1 year')""",
        site_id,
        directory,
        certificate(key, "shop.example.com"),
        sealer.seal(pem_of(key).encode(), "ACME certificate key"),
        NOW - timedelta(days=1),
        NOW + timedelta(days=30),
    )

    async with open_panel(panel_database, tmp_path, loops=["web server"]) as panel:
        web = cast(RecordedServing, panel.host.web)
        root = await panel.administrator()
        await panel.step("certificates of sites")
        [server] = web.sites.values()
        shown = (await root.get(f"/sites/{site_id}/ssl")).json()

    assert server.certificate is not None
    assert shown["state"] == "active"
    assert not stale.exists()


async def test_a_core_starts_whose_sealing_key_opens_a_certificate_no_more(
    panel_database: Database, tmp_path: Path
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with world_of(panel_database, tmp_path) as world:
        await world.upload(certificate(key, "shop.example.com"), pem_of(key))
        path = world.path
    shutil.rmtree(tmp_path / "certificates")
    await panel_database.execute("UPDATE site_certificates SET sealed_key = 'of another key'")

    async with open_panel(panel_database, tmp_path, loops=["certificates of sites", "web server"]) as panel:
        answer = await (await panel.administrator()).get(path)

    assert answer.json()["state"] == "active"


async def test_a_failed_order_is_not_repeated_by_customers_as_often_as_they_like(
    panel_database: Database, tmp_path: Path
) -> None:
    acme = AcmeSettings("ops@example.com", (), terms_agreed=True, directory="https://localhost:1/directory")
    async with open_panel(panel_database, tmp_path, acme=acme, loops=["web server"]) as panel:
        ada, root = await panel.customer(), await panel.administrator()
        site = (await ada.post("/sites", {"domain": "shop.example.com", "type": "static"})).json()
        await panel.step("certificates of sites")  # Nobody listens there.
        found = (await ada.get(f"/sites/{site['id']}/ssl")).json()["last_error"]

        by_customer = await ada.post(f"/sites/{site['id']}/ssl")
        by_administrator = await root.post(f"/sites/{site['id']}/ssl")

    assert found is not None
    assert by_customer.status_code == 429
    assert by_administrator.status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_a_foreign_site_has_no_certificate(panel_database: Database, tmp_path: Path, method: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    body = {"certificate": certificate(key, "shop.example.com"), "key": pem_of(key)} if method == "PUT" else {}
    async with world_of(panel_database, tmp_path) as world:
        answer = await world.bob.call(method, world.path, None if method == "GET" else body)

    assert answer.status_code == 404


async def test_without_an_authority_none_is_ordered_and_that_is_said(panel_database: Database, tmp_path: Path) -> None:
    async with world_of(panel_database, tmp_path) as world:
        answer = await world.ada.post(world.path)

    assert answer.status_code == 409
    assert "Upload one" in answer.json()["error"]["hint"]


async def test_one_that_is_taken_away_is_served_no_more(panel_database: Database, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with world_of(panel_database, tmp_path) as world:
        await world.upload(certificate(key, "shop.example.com"), pem_of(key))
        answer = await world.ada.call("DELETE", world.path, {})
        again = await world.ada.call("DELETE", world.path, {})
        (server,) = world.served.sites.values()

    assert answer.json()["state"] == "none"
    assert server.certificate is None
    assert again.status_code == 409
