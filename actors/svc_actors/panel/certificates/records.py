"""Certificates of sites as the database keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.acme import ChallengeType
from svc_actors.certificates import left_out
from svc_actors.certificates.left_out import Refusal
from svc_actors.panel.certificates.leaf import ParsedCertificate
from svc_actors.panel.certificates.names import wildcards_of
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record, Transaction

KEY_PURPOSE: Final = "site certificate key"
_PREFIX: Final = "site:"


class Source(StrEnum):
    ACME = "acme"
    UPLOADED = "uploaded"


class CertificateState(StrEnum):
    """NONE: the site has only HTTP. ORDERING: it has no certificate yet, and one is ordered. FAILED: it has none, and
    the last order failed. EXPIRED: its certificate has expired."""

    NONE = "none"
    ORDERING = "ordering"
    FAILED = "failed"
    ACTIVE = "active"
    EXPIRED = "expired"


@dataclass(frozen=True)
class SiteCertificate:
    """`challenge`, `wildcards`, `last_error`, `next_attempt_at` and `left_out` belong to the ACME order, if there is
    one; `left_out` are names that the certificate is without, since the authority refused them. `served`: whether the
    last handshake with this server showed this certificate; None before the first look."""

    state: CertificateState
    source: Source | None
    names: tuple[str, ...]
    issuer: str | None
    not_before: datetime | None
    not_after: datetime | None
    fingerprint: str | None
    served: bool | None
    challenge: ChallengeType | None
    wildcards: tuple[str, ...]
    last_error: str | None
    next_attempt_at: datetime | None
    left_out: tuple[Refusal, ...]


def acme_name(site_id: UUID) -> str:
    """Name of the order of a site's certificate in `acme_certificates`."""
    return f"{_PREFIX}{site_id}"


def site_of_name(name: str) -> UUID | None:
    return UUID(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


async def read_site_certificate(queryable: Queryable, site_id: UUID) -> SiteCertificate:
    row = await queryable.fetchone(
        """
        SELECT c.source, c.names, c.issuer, c.not_before, c.not_after, c.fingerprint, c.served,
               a.name IS NOT NULL AS wanted, a.challenge, a.names AS ordered, a.last_error, a.due_at,
               a.left_out
        FROM (SELECT $1::uuid AS site_id) AS s
        LEFT JOIN site_certificates AS c ON c.site_id = s.site_id
        LEFT JOIN acme_certificates AS a ON a.name = $2
        """,
        site_id,
        acme_name(site_id),
    )
    return SiteCertificate(
        state=_state(row),
        source=Source(row["source"]) if row["source"] else None,
        names=tuple(row["names"] or ()),
        issuer=row["issuer"],
        not_before=row["not_before"],
        not_after=row["not_after"],
        fingerprint=row["fingerprint"],
        served=row["served"],
        challenge=ChallengeType(row["challenge"]) if row["challenge"] else None,
        wildcards=tuple(wildcards_of(row["ordered"] or ())),
        last_error=row["last_error"],
        next_attempt_at=row["due_at"],
        left_out=tuple(left_out.read(row["left_out"] or {})),
    )


def _state(row: Record) -> CertificateState:
    if row["fingerprint"] is not None:
        return CertificateState.ACTIVE if row["not_after"] > datetime.now(UTC) else CertificateState.EXPIRED
    if not row["wanted"]:
        return CertificateState.NONE
    return CertificateState.FAILED if row["last_error"] else CertificateState.ORDERING


async def write_certificate(
    tx: Transaction, sealer: Sealer, site_id: UUID, source: Source, certificate: ParsedCertificate
) -> bool:
    """Record the certificate to serve. Returns whether it differs from the previous one."""
    changed: bool | None = await tx.fetchval(
        """
        INSERT INTO site_certificates
            (site_id, source, names, issuer, not_before, not_after, fingerprint, chain, sealed_key)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (site_id) DO UPDATE
        SET source = excluded.source, names = excluded.names, issuer = excluded.issuer,
            not_before = excluded.not_before, not_after = excluded.not_after, fingerprint = excluded.fingerprint,
            chain = excluded.chain, sealed_key = excluded.sealed_key, installed_at = now(),
            checked_at = NULL, served = NULL
        WHERE site_certificates.fingerprint <> excluded.fingerprint OR site_certificates.source <> excluded.source
        RETURNING true
        """,
        site_id,
        source.value,
        list(certificate.names),
        certificate.issuer,
        certificate.not_before,
        certificate.not_after,
        certificate.fingerprint,
        certificate.chain,
        sealer.seal(certificate.key, KEY_PURPOSE),
    )
    return bool(changed)


async def remove_certificate(tx: Transaction, site_id: UUID) -> bool:
    return bool(await tx.fetchval("DELETE FROM site_certificates WHERE site_id = $1 RETURNING true", site_id))


async def write_seen(queryable: Queryable, site_id: UUID, fingerprint: str, served: bool) -> None:
    await queryable.execute(
        "UPDATE site_certificates SET checked_at = now(), served = $3 WHERE site_id = $1 AND fingerprint = $2",
        site_id,
        fingerprint,
        served,
    )
