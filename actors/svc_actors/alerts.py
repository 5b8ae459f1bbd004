"""Alerts: problems that an operator must look at, raised once while they last.

Invariant: at most one alert per key is open; raising it again changes only its message and severity.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.store import EventKind, NewEvent, Queryable, Record, Transaction, events

KEPT_DAYS: Final = 90
"""How long a closed alert stays in the database, for investigations with SQL; nothing else shows it."""


class Severity(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True)
class CustomerNotice:
    """An alert worded for the members of a project: it names no node, no pool and nothing else of the host."""

    project_id: UUID
    message: str


async def raise_alert(
    tx: Transaction,
    key: str,
    message: str,
    *,
    severity: Severity = Severity.WARNING,
    resource_kind: str | None = None,
    resource_id: UUID | str | None = None,
    notice: CustomerNotice | None = None,
) -> None:
    """Open the alert of this key, or keep it open. An event is sent when it opens or its message changes. `notice`
    is for the customer whose machine it is about."""
    row = await tx.fetchrow(
        """INSERT INTO alerts (key, severity, message, resource_kind, resource_id, project_id, told)
           VALUES ($1, $2, $3, $4, $5, $6, $7)
           ON CONFLICT (key) WHERE closed_at IS NULL
           DO UPDATE SET message = excluded.message, severity = excluded.severity, told = excluded.told
           WHERE (alerts.message, alerts.severity) IS DISTINCT FROM (excluded.message, excluded.severity)
           RETURNING *""",
        key,
        severity.value,
        message,
        resource_kind,
        str(resource_id) if resource_id is not None else None,
        notice.project_id if notice is not None else None,
        notice.message if notice is not None else None,
    )
    if row is not None:
        await announce_alert(tx, row)


async def close_alert(tx: Transaction, key: str) -> None:
    """Close the alert of this key, if it is open: its cause is over."""
    row = await tx.fetchrow("UPDATE alerts SET closed_at = now() WHERE key = $1 AND closed_at IS NULL RETURNING *", key)
    if row is not None:
        await announce_alert(tx, row)


async def set_alert(tx: Transaction, key: str, message: str | None, *, severity: Severity = Severity.WARNING) -> None:
    """Open the alert of this key with the message, or close it if there is no message."""
    if message is None:
        await close_alert(tx, key)
    else:
        await raise_alert(tx, key, message, severity=severity)


async def was_acknowledged(queryable: Queryable, key: str) -> bool:
    """Whether the alert of this key is open, and an operator has acknowledged it."""
    seen: bool | None = await queryable.fetchval(
        "SELECT acknowledged_at IS NOT NULL FROM alerts WHERE key = $1 AND closed_at IS NULL", key
    )
    return seen is True


async def close_alerts(tx: Transaction, prefix: str, *, keep: Collection[str] = ()) -> None:
    """Close every open alert whose key starts with `prefix`, except those of the keys `keep`."""
    rows = await tx.fetch(
        """UPDATE alerts SET closed_at = now()
           WHERE starts_with(key, $1) AND key <> ALL($2::text[]) AND closed_at IS NULL RETURNING *""",
        prefix,
        list(keep),
    )
    for row in rows:
        await announce_alert(tx, row)


async def close_alerts_about(tx: Transaction, kind: str, resource_id: UUID) -> None:
    """Close every open alert about a resource that is removed: nothing about it can be repaired any longer."""
    rows = await tx.fetch(
        """UPDATE alerts SET closed_at = now() WHERE resource_kind = $1 AND resource_id = $2 AND closed_at IS NULL
           RETURNING *""",
        kind,
        str(resource_id),
    )
    for row in rows:
        await announce_alert(tx, row)


async def hand_over_alerts(tx: Transaction, kind: str, resource_id: UUID, before: UUID, after: UUID) -> None:
    """Show the alerts about a resource to the members of its new project, as unacknowledged, instead of the old one."""
    rows = await tx.fetch(
        """UPDATE alerts SET project_id = $4, customer_acknowledged_at = NULL, customer_acknowledged_by = NULL
           WHERE resource_kind = $1 AND resource_id = $2 AND project_id = $3 AND closed_at IS NULL RETURNING *""",
        kind,
        str(resource_id),
        before,
        after,
    )
    for row in rows:
        await announce_alert(tx, row)


async def forget_closed_alerts(queryable: Queryable) -> int:
    """Remove alerts closed more than `KEPT_DAYS` ago; returns how many. The composer runs it from time to time."""
    return await queryable.change("DELETE FROM alerts WHERE closed_at < now() - make_interval(days => $1)", KEPT_DAYS)


async def announce_alert(tx: Transaction, row: Record) -> None:
    await events.append(
        tx,
        NewEvent(
            kind=EventKind.ALERT,
            subject=str(row["id"]),
            administrators_only=True,
            payload={
                "id": str(row["id"]),
                "key": row["key"],
                "severity": row["severity"],
                "message": row["message"],
                "resource_kind": row["resource_kind"],
                "resource_id": row["resource_id"],
                "open": row["closed_at"] is None,
                "acknowledged": row["acknowledged_at"] is not None,
            },
        ),
    )
    if row["project_id"] is None:
        return
    # The same event for the members of the project, without the message for operators.
    await events.append(
        tx,
        NewEvent(
            kind=EventKind.ALERT,
            subject=str(row["id"]),
            project_id=row["project_id"],
            payload={
                "id": str(row["id"]),
                "severity": row["severity"],
                "message": row["told"],
                "resource_kind": row["resource_kind"],
                "resource_id": row["resource_id"],
                "open": row["closed_at"] is None,
                "acknowledged": row["customer_acknowledged_at"] is not None,
            },
        ),
    )
