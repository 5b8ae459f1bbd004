"""Certificates without a record: this authority signed them after the backup that the controller was restored from.

A certificate and its row are written in one transaction, so a certificate without a row has no other cause. A recorded
node that has renewed its certificate since the backup has no other certificate and would be locked out for good: it is
admitted, and its certificate is recorded. A node that joined since the backup has no record: an alert names its host,
which must join again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ssl import cert_time_to_seconds
from typing import Any, Self
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.store import Transaction


@dataclass(frozen=True)
class PresentedCertificate:
    """A certificate that a handshake has verified. `node_id` is the node that it names."""

    serial: str
    node_id: UUID
    issued_at: datetime
    expires_at: datetime

    @classmethod
    def of(cls, peer: Mapping[str, Any], *, backdated: timedelta) -> Self:
        """Parse the result of `getpeercert`. Raises `ValueError` if the certificate is not a node's."""
        if not peer:
            raise ValueError("no certificate was shown")
        names = dict(pair for part in peer["subject"] for pair in part)
        return cls(
            serial=f"{int(peer['serialNumber'], 16):x}",
            node_id=UUID(names.get("commonName", "")),
            issued_at=_moment(peer["notBefore"]) + backdated,
            expires_at=_moment(peer["notAfter"]),
        )


async def record_signed_certificate(tx: Transaction, shown: PresentedCertificate) -> bool:
    """Record a known node's certificate if it was signed between a backup and its restore. Returns whether it was."""
    if not await tx.fetchval(
        "SELECT EXISTS (SELECT FROM restorations WHERE taken_at <= $1::timestamptz + interval '1 minute'"
        " AND restored_at >= $1)",
        shown.issued_at,
    ):
        return False
    recorded = await tx.fetchval(
        """INSERT INTO node_certificates (serial, node_id, issued_at, expires_at)
           SELECT $1, id, $3, $4 FROM nodes WHERE id = $2 AND deleted_at IS NULL
           ON CONFLICT DO NOTHING RETURNING true""",
        shown.serial,
        shown.node_id,
        shown.issued_at,
        shown.expires_at,
    )
    key = f"node-unrecorded:{shown.node_id}"
    if recorded:
        await close_alert(tx, key)
        return True
    if not await tx.fetchval("SELECT EXISTS (SELECT FROM nodes WHERE id = $1)", shown.node_id):
        await raise_alert(
            tx,
            key,
            f"The host that joined as node {shown.node_id} after the backup connects, but has no record. Its "
            "machines are unknown: have it join again before the pools of its location give out addresses.",
        )
    return False


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(cert_time_to_seconds(text), UTC)
