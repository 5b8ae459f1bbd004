"""The controller's certificate authority: one key, created once and stored sealed, that nodes and the controller trust.

Invariants:

- the names in a certificate come from the controller, never from the request. A node's certificate contains its id and
  is valid for client authentication only;
- a certificate is valid while its row is not revoked. When a renewed one is first used, the node's others are revoked;
  until then the node uses the old one;
- the holder of a certificate is cached after the first lookup, also when it has none.

Why: docs/decisions/0022-node-enrolment-and-upgrades.md.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from svc_actors.controller.gateway.unrecorded import PresentedCertificate, record_signed_certificate
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Transaction
from svc_common.durable import write_whole
from svc_common.errors import not_found, rate_limited, wrong_field
from svc_nodeagent.protocol import CONTROLLER_NAME

NODE_LIFETIME: Final = timedelta(days=90)
_AUTHORITY_LIFETIME: Final = timedelta(days=20 * 365)
_SERVER_LIFETIME: Final = timedelta(days=397)
_SERVER_RENEWED_BEFORE: Final = timedelta(days=30)
_BACKDATED: Final = timedelta(days=2)
"""Certificates are valid from this long before they are signed, so that a host whose clock is a day behind, or is set
back by a day, still accepts a new certificate."""
_PURPOSE: Final = "certificate authority key"
_MOST_REFUSED: Final = 10_000
_CERTIFICATES_AN_HOUR: Final = 10
"""For each node. An agent asks every ten minutes until it gets a certificate, and each request leaves a row for
ever."""

Serial = str


@dataclass(frozen=True)
class NodeCertificate:
    """`pem` is the node's own certificate, `serial` in lower-case hex."""

    pem: str
    serial: Serial
    expires_at: datetime


@dataclass(frozen=True)
class ServerCertificate:
    """Files of the certificate that the API and the gateway show: `chain` (with the authority's certificate) and `key`.
    `pin` is the SHA-256 of its public key, in base64 as curl's --pinnedpubkey takes it; the key stays the same when the
    certificate is renewed. `node_name` is the server name (SNI) that nodes ask for: for this name the server shows this
    certificate, whichever one browsers get.
    """

    chain: Path
    key: Path
    authority: Path
    pin: str
    node_name: str
    expires_at: datetime


class Authority:
    def __init__(self, database: Database, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._database = database
        self._certificate = certificate
        self._key = key
        self._holders: dict[Serial, UUID] = {}
        self._refused: dict[Serial, None] = {}
        self._forgotten = 0

    @classmethod
    async def open(cls, database: Database, sealer: Sealer) -> Authority:
        """The authority of this controller. The first call creates it; concurrent calls get the same one."""
        row = await database.fetchrow("SELECT certificate, sealed_key FROM authority")
        if row is None:
            key = ec.generate_private_key(ec.SECP256R1())
            await database.execute(
                "INSERT INTO authority (certificate, sealed_key) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                _pem(_root(key)),
                sealer.seal(_private_pem(key), _PURPOSE),
            )
            row = await database.fetchrow("SELECT certificate, sealed_key FROM authority")
        if row is None:
            raise LookupError("the certificate authority was removed while it was being opened")
        kept = serialization.load_pem_private_key(sealer.unseal(row["sealed_key"], _PURPOSE), password=None)
        if not isinstance(kept, ec.EllipticCurvePrivateKey):
            raise TypeError("the key of the certificate authority is of another kind than it was made with")
        return cls(database, x509.load_pem_x509_certificate(row["certificate"].encode()), kept)

    @property
    def certificate_pem(self) -> str:
        return _pem(self._certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, in hex; a new node gets it in order to trust the authority."""
        return self._certificate.fingerprint(hashes.SHA256()).hex()

    def derive(self, purpose: str) -> bytes:
        """A secret of 32 bytes for one purpose. It stays the same as long as the authority does."""
        return HKDF(hashes.SHA256(), 32, salt=None, info=purpose.encode()).derive(_private_pem(self._key))

    def sign(self, statement: bytes) -> str:
        """The authority's signature: ECDSA with SHA-256, in base64. `statement` starts with its purpose."""
        return base64.b64encode(self._key.sign(statement, ec.ECDSA(hashes.SHA256()))).decode()

    async def sign_node(self, tx: Transaction, node_id: UUID, csr: str) -> NodeCertificate:
        """A certificate for the key of `csr`, valid once `tx` commits. Raises `invalid` if `csr` is not a signing
        request, and `rate_limited` past ten in an hour."""
        public_key = _public_key(csr)
        recent = await tx.fetchval(
            "SELECT count(*) FROM node_certificates WHERE node_id = $1 AND issued_at > now() - interval '1 hour'",
            node_id,
        )
        if recent >= _CERTIFICATES_AN_HOUR:
            raise rate_limited(
                f"This node has received {recent} certificates within an hour; no other was issued.",
                hint="Try again later.",
            )
        certificate = (
            self._builder(f"{node_id}", NODE_LIFETIME)
            .public_key(public_key)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(node_id.urn)]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        signed = NodeCertificate(_pem(certificate), f"{certificate.serial_number:x}", certificate.not_valid_after_utc)
        await tx.execute(
            "INSERT INTO node_certificates (serial, node_id, expires_at) VALUES ($1, $2, $3)",
            signed.serial,
            node_id,
            signed.expires_at,
        )
        return signed

    async def renew(self, node_id: UUID, current: Serial, csr: str) -> NodeCertificate:
        """A further certificate for a node that is connected with `current`; earlier renewals that were not used are
        revoked. Raises as `sign_node`, and not_found for a node that was deleted or declared lost meanwhile. Deleting a
        node and declaring it lost lock its row, too, so either the new certificate is revoked with the others, or none
        is signed."""
        async with self._database.transaction() as tx:
            if not await tx.fetchval(
                "SELECT true FROM nodes WHERE id = $1 AND deleted_at IS NULL AND lost_at IS NULL FOR NO KEY UPDATE",
                node_id,
            ):
                raise not_found("The node no longer exists.")
            await tx.execute(
                "UPDATE node_certificates SET revoked_at = now()"
                " WHERE node_id = $1 AND serial <> $2 AND revoked_at IS NULL",
                node_id,
                current,
            )
            signed = await self.sign_node(tx, node_id, csr)
        self._drop_holders(node_id, keep=current)
        return signed

    def read(self, peer: Mapping[str, Any]) -> PresentedCertificate | None:
        """Read a certificate that a handshake has verified; None if it is not a node's."""
        try:
            return PresentedCertificate.of(peer, backdated=_BACKDATED)
        except ValueError:
            return None

    async def identify(self, serial: Serial, shown: PresentedCertificate | None = None) -> UUID | None:
        """The node that holds this certificate, or None if the certificate is revoked or unknown. `shown` is the
        certificate itself: if it has no record because it was signed after the backup from which the controller was
        restored, it is recorded now (`unrecorded`)."""
        if serial in self._refused:
            return None
        known = self._holders.get(serial)
        if known is not None:
            return known
        forgotten = self._forgotten
        row = await self._database.fetchrow(
            """
            SELECT own.node_id,
                   (SELECT array_agg(serial) FROM node_certificates AS other
                     WHERE other.node_id = own.node_id AND other.serial <> own.serial
                       AND other.revoked_at IS NULL AND other.issued_at < own.issued_at) AS superseded
              FROM node_certificates AS own
             WHERE own.serial = $1 AND own.revoked_at IS NULL
            """,
            serial,
        )
        if (
            row is None
            and shown is not None
            and await self._database.transact(partial(record_signed_certificate, shown=shown))
        ):
            return await self.identify(serial)
        if row is None:
            while len(self._refused) >= _MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[serial] = None
            return None
        node_id: UUID = row["node_id"]
        if row["superseded"]:
            await self._database.execute(
                "UPDATE node_certificates SET revoked_at = now() WHERE serial = ANY($1::text[])", row["superseded"]
            )
        if self._forgotten != forgotten:
            return await self.identify(serial)  # A certificate was revoked while this read the database: read again.
        self._drop_holders(node_id, keep=serial)
        self._holders[serial] = node_id
        return node_id

    async def revoke(self, tx: Transaction, node_id: UUID) -> None:
        """Revoke every certificate of a node; after the commit, `forget` it."""
        await tx.execute(
            "UPDATE node_certificates SET revoked_at = now() WHERE node_id = $1 AND revoked_at IS NULL", node_id
        )

    def forget(self, node_id: UUID) -> None:
        """Drop the node from the cache, after its revocation is committed."""
        self._forgotten += 1
        self._drop_holders(node_id, keep=None)

    def _drop_holders(self, node_id: UUID, *, keep: Serial | None) -> None:
        self._holders = {
            serial: holder for serial, holder in self._holders.items() if holder != node_id or serial == keep
        }

    def server_certificate(self, data_dir: Path, public_host: str) -> ServerCertificate:
        """The server's certificate files in `data_dir`/tls. They are created again if they are missing, about to
        expire, signed by another authority or issued for another name."""
        folder = data_dir / "tls"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        chain, key_file, authority = folder / "server.pem", folder / "server.key", folder / "authority.pem"
        key = _kept_key(key_file)
        kept = _kept_certificate(chain)
        if not authority.exists() or authority.read_text() != self.certificate_pem:
            write_whole(authority, self.certificate_pem.encode(), mode=0o644)
        if kept is None or not self._still_good(kept, key, public_host):
            kept = self._server(key, public_host)
            write_whole(chain, (_pem(kept) + self.certificate_pem).encode(), mode=0o644)
        pin = base64.b64encode(hashlib.sha256(_public_der(key.public_key())).digest()).decode()
        return ServerCertificate(chain, key_file, authority, pin, CONTROLLER_NAME, kept.not_valid_after_utc)

    def _still_good(self, kept: x509.Certificate, key: ec.EllipticCurvePrivateKey, public_host: str) -> bool:
        try:
            kept.verify_directly_issued_by(self._certificate)
            names = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return False
        return (
            _public_der(kept.public_key()) == _public_der(key.public_key())
            and set(names) == set(_server_names(public_host))
            and kept.not_valid_after_utc - _SERVER_RENEWED_BEFORE > datetime.now(UTC)
        )

    def _server(self, key: ec.EllipticCurvePrivateKey, public_host: str) -> x509.Certificate:
        return (
            self._builder(public_host[:64], _SERVER_LIFETIME)
            .public_key(key.public_key())
            .add_extension(x509.SubjectAlternativeName(_server_names(public_host)), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _builder(self, common_name: str, lifetime: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common_name))
            .issuer_name(self._certificate.subject)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(now + lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _root(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now = datetime.now(UTC)
    name = _name(f"svc controller {os.urandom(4).hex()}")
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _server_names(public_host: str) -> list[x509.GeneralName]:
    """The public name or address, the machine's local names, and the name that nodes ask for."""
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys([public_host, "localhost", "127.0.0.1", "::1", CONTROLLER_NAME]):
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _public_key(csr: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key = request.public_key()
        signed = request.is_signature_valid
    except (ValueError, TypeError) as error:
        raise wrong_field("csr", "not a certificate signing request in PEM") from error
    if not signed or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise wrong_field("csr", "must be signed with its own P-256 key")
    return key


def public_key_digest(csr: str) -> bytes:
    """SHA-256 of a signing request's public key. Raises `invalid` if `csr` is not a signing request."""
    return hashlib.sha256(_public_der(_public_key(csr))).digest()


def _public_der(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return b""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _kept_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        kept = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        kept = None
    if isinstance(kept, ec.EllipticCurvePrivateKey):
        return kept
    key = ec.generate_private_key(ec.SECP256R1())
    write_whole(file, _private_pem(key), mode=0o600)
    return key


def _kept_certificate(file: Path) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
