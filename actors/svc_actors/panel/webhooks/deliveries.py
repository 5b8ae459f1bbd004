"""Deliveries: what is due, what became of an attempt, what is sent again, and what is forgotten.

Invariants:
- an outcome is taken down for the attempt that it is of: one that a replay has overtaken changes nothing;
- what waits is never forgotten, however old it is and however much there is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.errors import conflict, not_found
from svc_actors.panel.webhooks.delivery_states import Answered, Outcome, Verdict, judge
from svc_actors.panel.webhooks.outbox import CHANNEL
from svc_actors.store import Database, Queryable, Record, Transaction

KEPT_FOR: Final = timedelta(days=14)
KEPT: Final = 500
"""Deliveries of an endpoint, of which the newest stay."""


@dataclass(frozen=True)
class Due:
    """A delivery for one attempt: with its endpoint's URL and secret of this moment."""

    id: UUID
    attempts: int
    event: str
    body: bytes
    url: str
    sealed_secret: bytes


async def endpoints_due(queryable: Queryable, now: datetime) -> list[UUID]:
    rows = await queryable.fetch(
        """
        SELECT DISTINCT d.endpoint_id FROM webhook_deliveries AS d JOIN webhook_endpoints AS e ON e.id = d.endpoint_id
        WHERE d.next_attempt_at <= $1 AND e.enabled
        """,
        now,
    )
    return [row["endpoint_id"] for row in rows]


async def next_attempt(queryable: Queryable, after: datetime) -> datetime | None:
    """When the next delivery is due of those that are not yet."""
    at: datetime | None = await queryable.fetchval(
        """
        SELECT min(d.next_attempt_at) FROM webhook_deliveries AS d JOIN webhook_endpoints AS e ON e.id = d.endpoint_id
        WHERE d.next_attempt_at > $1 AND e.enabled
        """,
        after,
    )
    return at


async def due(
    queryable: Queryable, endpoint_id: UUID, now: datetime, *, most: int, under_way: Collection[UUID]
) -> list[Due]:
    """What is to be tried now, the longest due first, without the attempts that are being made."""
    rows = await queryable.fetch(
        """
        SELECT d.id, d.attempts, v.event, v.body, e.url, e.sealed_secret
        FROM webhook_deliveries AS d
        JOIN webhook_endpoints AS e ON e.id = d.endpoint_id
        JOIN webhook_events AS v ON v.id = d.event_id
        WHERE d.endpoint_id = $1 AND e.enabled AND d.next_attempt_at <= $2 AND d.id <> ALL($3::uuid[])
        ORDER BY d.next_attempt_at, d.id LIMIT $4
        """,
        endpoint_id,
        now,
        list(under_way),
        most,
    )
    return [Due(**dict(row)) for row in rows]


async def record(
    database: Database, delivery: Due, outcome: Outcome, *, began: datetime, ended: datetime
) -> Verdict | None:
    """Take down what came of an attempt, and when there is another; None where it has been overtaken."""
    verdict = judge(outcome, delivery.attempts + 1)
    changed = await database.change(
        """
        UPDATE webhook_deliveries
        SET status = $3, attempts = attempts + 1, next_attempt_at = $4, attempted_at = $5, duration_ms = $6,
            response_status = $7, error = $8
        WHERE id = $1 AND attempts = $2 AND next_attempt_at IS NOT NULL
        """,
        delivery.id,
        delivery.attempts,
        verdict.status.value,
        ended + verdict.pause if verdict.pause is not None else None,
        ended,
        max(0, round((ended - began).total_seconds() * 1000)),
        outcome.status if isinstance(outcome, Answered) else None,
        None if isinstance(outcome, Answered) else outcome.reason,
    )
    return verdict if changed else None


async def replay(tx: Transaction, endpoint_id: UUID, delivery_id: UUID, now: datetime) -> Record:
    """Have a delivery made again from its first attempt, at once: the same event and bytes under the same id. Raises
    `not_found`, and `conflict` for an endpoint that is not enabled."""
    row = await tx.fetchrow(
        """
        SELECT e.enabled, v.event FROM webhook_deliveries AS d
        JOIN webhook_endpoints AS e ON e.id = d.endpoint_id JOIN webhook_events AS v ON v.id = d.event_id
        WHERE d.id = $1 AND d.endpoint_id = $2 FOR NO KEY UPDATE OF d
        """,
        delivery_id,
        endpoint_id,
    )
    if row is None:
        raise not_found("There is no such delivery.", hint="Those of the last 14 days are kept, 500 an endpoint.")
    if not row["enabled"]:
        raise conflict("This webhook endpoint is not enabled.", hint="Enable it first; the delivery is kept.")
    await tx.execute(
        "UPDATE webhook_deliveries SET status = 'pending', attempts = 0, next_attempt_at = $2 WHERE id = $1",
        delivery_id,
        now,
    )
    tx.announce(CHANNEL)
    return row


async def forget_old(database: Database, now: datetime) -> int:
    """Remove what is over and older than `KEPT_FOR`, or beyond the newest `KEPT` of its endpoint; returns how many
    deliveries."""
    removed = await database.change(
        """
        DELETE FROM webhook_deliveries WHERE id IN (
            SELECT id FROM (
                SELECT id, status, created_at,
                       row_number() OVER (PARTITION BY endpoint_id ORDER BY created_at DESC, id DESC) AS place
                FROM webhook_deliveries
            ) AS ordered
            WHERE status IN ('delivered', 'failed') AND (created_at < $1 OR place > $2)
        )
        """,
        now - KEPT_FOR,
        KEPT,
    )
    await database.execute(
        """
        DELETE FROM webhook_events WHERE at < $1
          AND NOT EXISTS (SELECT FROM webhook_deliveries AS d WHERE d.event_id = webhook_events.id)
        """,
        now - KEPT_FOR,
    )
    return removed
