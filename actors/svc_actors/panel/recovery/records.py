"""Recovery in the database: the key, the manifest of each target, and the progress of a server's recovery.

The progress is stored in tables of the recovered server, and not in the job that recovers the sites: a job is failed
when the core restarts, and the next job has to know which sites are still missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.panel.recovery.key import NewKey, WrappedKey
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction
from svc_common.errors import conflict

# Purposes of seals: a value that was sealed for one purpose cannot be used in place of one for the other.
SEALED_FOR: Final = "recovery manifests"
ORDERED_FOR: Final = "recovery order"


@dataclass(frozen=True)
class KeyRow:
    fingerprint: str
    wrapped: WrappedKey
    sealed_key: bytes
    created_at: datetime

    def data_key(self, sealer: Sealer) -> bytes:
        return sealer.unseal(self.sealed_key, SEALED_FOR)


@dataclass(frozen=True)
class OrderRow:
    """`snapshot`: the manifest at the target from which this server is to recover."""

    target_id: UUID
    snapshot: str
    sealed_secret: bytes
    ordered_at: datetime

    def recovery_key(self, sealer: Sealer) -> str:
        return sealer.unseal(self.sealed_secret, ORDERED_FOR).decode()


@dataclass(frozen=True)
class SourceRow:
    """The server that this one was recovered from. `notes`: for the administrator."""

    target_id: UUID
    hostname: str
    taken_at: datetime
    notes: tuple[str, ...]
    recovered_at: datetime


class SiteRecovery(StrEnum):
    WAITING = "waiting"
    RECOVERED = "recovered"
    FAILED = "failed"


async def read_key(queryable: Queryable) -> KeyRow | None:
    row = await queryable.fetchrow("SELECT fingerprint, wrapped, sealed_key, created_at FROM recovery_key")
    if row is None:
        return None
    return KeyRow(row["fingerprint"], WrappedKey.model_validate(row["wrapped"]), row["sealed_key"], row["created_at"])


async def write_key(tx: Transaction, sealer: Sealer, key: NewKey, *, rotate: bool) -> None:
    """Raises `conflict` if there is a key already and `rotate` is false."""
    # A single statement writes the key: if two callers do this at the same time, one gets `conflict`, and the key that
    # the other one received stays valid.
    done = await tx.change(
        """INSERT INTO recovery_key (fingerprint, wrapped, sealed_key) VALUES ($1, $2, $3)
           ON CONFLICT (one) DO UPDATE SET fingerprint = EXCLUDED.fingerprint, wrapped = EXCLUDED.wrapped,
                                           sealed_key = EXCLUDED.sealed_key, created_at = now()
           WHERE $4""",
        key.fingerprint,
        key.wrapped.model_dump(mode="json"),
        sealer.seal(key.data_key, SEALED_FOR),
        rotate,
    )
    if not done:
        raise conflict(
            "There is a recovery key already; it was shown when it was created and is not stored here.",
            hint="If it is lost, rotate it: that creates a new key and removes the manifests of the old one.",
        )


async def change_state(queryable: Queryable) -> str:
    """A text that differs after every change that a manifest has to contain: a change by an audited operation, by an
    event of webhooks, or by a copy of a backup."""
    # Sessions and recovery itself are left out: a session is not valid on another server, and writing a manifest would
    # otherwise make this same manifest outdated. Readings and the progress of jobs are in neither of the two tables.
    row = await queryable.fetchone(
        """SELECT
               (SELECT fingerprint FROM recovery_key) AS key,
               (SELECT max(id) FROM audit WHERE outcome = 'ok'
                    AND operation NOT LIKE 'session.%' AND operation NOT LIKE 'recovery.%') AS orders,
               (SELECT max(at) FROM webhook_events) AS told,
               (SELECT max(at) FROM backup_copies) AS copied"""
    )
    return " ".join(str(value) for value in row)


async def write_manifest(tx: Transaction, target_id: UUID, state: str, taken_at: datetime, size: int) -> None:
    await tx.execute(
        """INSERT INTO recovery_manifests (target_id, state, written_at, bytes, tried_at) VALUES ($1, $2, $3, $4, now())
           ON CONFLICT (target_id) DO UPDATE SET state = EXCLUDED.state, written_at = EXCLUDED.written_at,
               bytes = EXCLUDED.bytes, error = NULL, tried_at = now()""",
        target_id,
        state,
        taken_at,
        size,
    )


async def write_manifest_error(tx: Transaction, target_id: UUID, error: str) -> None:
    """Record the error. The record of the previous manifest stays, because that manifest is presumably still at the
    target."""
    await tx.execute(
        """INSERT INTO recovery_manifests (target_id, error, tried_at) VALUES ($1, $2, now())
           ON CONFLICT (target_id) DO UPDATE SET error = EXCLUDED.error, tried_at = now()""",
        target_id,
        error[:1000],
    )


async def read_order(queryable: Queryable) -> OrderRow | None:
    row = await queryable.fetchrow("SELECT target_id, snapshot, sealed_secret, ordered_at FROM recovery_orders")
    return None if row is None else OrderRow(**dict(row))


async def write_order(tx: Transaction, sealer: Sealer, target_id: UUID, snapshot: str, recovery_key: str) -> None:
    """Write an order. There is one at a time: a later order replaces an earlier one."""
    await tx.execute(
        """INSERT INTO recovery_orders (target_id, snapshot, sealed_secret) VALUES ($1, $2, $3)
           ON CONFLICT (one) DO UPDATE SET target_id = EXCLUDED.target_id, snapshot = EXCLUDED.snapshot,
               sealed_secret = EXCLUDED.sealed_secret, ordered_at = now()""",
        target_id,
        snapshot,
        sealer.seal(recovery_key.encode(), ORDERED_FOR),
    )


async def remove_order(tx: Transaction) -> None:
    await tx.execute("DELETE FROM recovery_orders")


async def read_source(queryable: Queryable) -> SourceRow | None:
    row = await queryable.fetchrow("SELECT target_id, hostname, taken_at, notes, recovered_at FROM recovery_source")
    return None if row is None else SourceRow(**(dict(row) | {"notes": tuple(row["notes"])}))


async def write_source(tx: Transaction, target_id: UUID, hostname: str, taken_at: datetime, notes: list[str]) -> None:
    """Record that this server has become the server of the manifest, and that all of its sites wait for their files."""
    # The manifest may be of a server that was itself recovered: the records of that earlier recovery are replaced.
    await tx.execute("DELETE FROM recovery_source")
    await tx.execute("DELETE FROM recovery_sites")
    await tx.execute(
        "INSERT INTO recovery_source (target_id, hostname, taken_at, notes) VALUES ($1, $2, $3, $4)",
        target_id,
        hostname,
        taken_at,
        notes,
    )
    await tx.execute("INSERT INTO recovery_sites (site_id) SELECT id FROM sites")


async def mark_reported(tx: Transaction) -> bool:
    """Mark the end of the recovery as reported. False if it was reported already."""
    return bool(await tx.change("UPDATE recovery_source SET told = true WHERE NOT told"))


async def is_unreported(queryable: Queryable) -> bool:
    """Whether a recovery with sites has not been reported as completed."""
    return bool(
        await queryable.fetchval(
            "SELECT EXISTS (SELECT FROM recovery_source WHERE NOT told) AND EXISTS (SELECT FROM recovery_sites)"
        )
    )


async def unfinished(queryable: Queryable) -> list[UUID]:
    """The sites that are not restored yet, in the order of their numbers."""
    rows = await queryable.fetch(
        """SELECT site_id FROM recovery_sites JOIN sites ON sites.id = site_id
           WHERE recovery_sites.status <> 'recovered' ORDER BY number"""
    )
    return [row["site_id"] for row in rows]


async def write_recovered(tx: Transaction, site_id: UUID, backup_at: datetime | None) -> None:
    """`backup_at`: None for a site that was never backed up."""
    await tx.execute(
        """UPDATE recovery_sites SET status = 'recovered', backup_at = $2, error = NULL, recovered_at = now()
           WHERE site_id = $1""",
        site_id,
        backup_at,
    )


async def write_not_recovered(tx: Transaction, site_id: UUID, error: str) -> None:
    # A site that is recovered stays recovered, whatever a later attempt meets.
    await tx.execute(
        "UPDATE recovery_sites SET status = 'failed', error = $2 WHERE site_id = $1 AND status <> 'recovered'",
        site_id,
        error[:1000],
    )
