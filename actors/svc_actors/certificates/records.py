"""The record of a certificate, without its keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from svc_actors.store import Queryable


@dataclass(frozen=True)
class CertificateRecord:
    """`names`: the configured names. `issuer`, `not_before` and `not_after`: of the current certificate. `ordering`: an
    order is under way. `due_at`: when the next step is due. `failures`: failed attempts in a row."""

    name: str
    directory: str
    names: tuple[str, ...]
    issuer: str | None
    not_before: datetime | None
    not_after: datetime | None
    ordering: bool
    due_at: datetime
    failures: int
    last_error: str | None
    failed_at: datetime | None


async def read_certificate(queryable: Queryable, name: str) -> CertificateRecord | None:
    row = await queryable.fetchrow(
        """SELECT name, directory, names, issuer, not_before, not_after, order_key IS NOT NULL AS ordering, due_at,
                  failures, last_error, failed_at
           FROM acme_certificates WHERE name = $1""",
        name,
    )
    return None if row is None else CertificateRecord(**dict(row) | {"names": tuple(row["names"])})
