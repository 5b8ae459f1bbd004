"""Deliveries: which are due, outcomes of attempts, replays, and removal of old ones.

Invariants:
- an outcome is recorded for its own attempt only: after a replay, the outcome of an earlier attempt changes nothing;
- a pending delivery is never removed, whatever its age and however many there are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.store import Database, Queryable, Record, Transaction
from svc_actors.webhooks.delivery_states import Answered, Outcome, Verdict, judge
from svc_actors.webhooks.outbox import CHANNEL
from svc_common.errors import ServiceError, conflict, not_found

KEPT_FOR: Final = timedelta(days=14)
KEPT: Final = 500
"""How many finished deliveries an endpoint keeps, the newest ones."""


@dataclass(frozen=True)
class DueDelivery:
    """A delivery for one attempt, with the current URL and secret of its endpoint."""

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
    """When the next delivery becomes due after `after`."""
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
) -> list[DueDelivery]:
    """The deliveries to attempt now, the longest due first, without those `under_way`."""
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
    return [DueDelivery(**dict(row)) for row in rows]


@dataclass(frozen=True)
class Attempt:
    """An attempt that has an outcome."""

    delivery: DueDelivery
    outcome: Outcome
    began: datetime
    ended: datetime

    @property
    def verdict(self) -> Verdict:
        return judge(self.outcome, self.delivery.attempts + 1)


async def record(database: Database, attempts: Sequence[Attempt]) -> list[Attempt]:
    """Record the outcomes of attempts and the time of the next one; returns those that no replay has overtaken."""
    rows = await database.fetch(
        """
        UPDATE webhook_deliveries AS d
        SET status = made.status, attempts = d.attempts + 1, next_attempt_at = made.next_attempt_at,
            attempted_at = made.ended, duration_ms = made.duration_ms, response_status = made.response_status,
            error = made.error
        FROM unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::int[], $7::int[],
                    $8::text[])
            AS made (id, attempts, status, next_attempt_at, ended, duration_ms, response_status, error)
        WHERE d.id = made.id AND d.attempts = made.attempts AND d.next_attempt_at IS NOT NULL
        RETURNING d.id
        """,
        *zip(*(_row(attempt) for attempt in attempts), strict=True),
    )
    recorded = {row["id"] for row in rows}
    return [attempt for attempt in attempts if attempt.delivery.id in recorded]


def _row(attempt: Attempt) -> tuple[object, ...]:
    verdict, outcome = attempt.verdict, attempt.outcome
    return (
        attempt.delivery.id,
        attempt.delivery.attempts,
        verdict.status.value,
        attempt.ended + verdict.pause if verdict.pause is not None else None,
        attempt.ended,
        max(0, round((attempt.ended - attempt.began).total_seconds() * 1000)),
        outcome.status if isinstance(outcome, Answered) else None,
        None if isinstance(outcome, Answered) else outcome.reason,
    )


async def replay(tx: Transaction, endpoint_id: UUID, delivery_id: UUID, now: datetime) -> Record:
    """Deliver again at once, starting from the first attempt: the same event and bytes under the same id. Raises
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
        raise no_such_delivery()
    if not row["enabled"]:
        raise conflict("This webhook endpoint is not enabled.", hint="Enable it first; the delivery is kept.")
    await tx.execute(
        "UPDATE webhook_deliveries SET status = 'pending', attempts = 0, next_attempt_at = $2 WHERE id = $1",
        delivery_id,
        now,
    )
    tx.announce(CHANNEL, str(endpoint_id))
    return row


async def forget_old(database: Database, now: datetime) -> int:
    """Remove finished deliveries that are older than `KEPT_FOR`, or beyond the newest `KEPT` of their endpoint; returns
    how many."""
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


def no_such_delivery() -> ServiceError:
    return not_found("There is no such delivery.", hint="Deliveries are kept for 14 days, 500 per endpoint.")
