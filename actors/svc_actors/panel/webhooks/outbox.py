"""Events on their way out: written in the transaction of what they tell of, so that neither is there without the other.

    await emit(tx, WebhookEvent.SITE_CREATED, subject=Subject("site", str(site.id), site.domain), data={"type": "php"})

The body is composed here, once: all attempts of all deliveries of an event send the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

from svc_actors.panel.webhooks.events import Scalar, Subject, WebhookEvent, payload
from svc_actors.store import Transaction

CHANNEL: Final = "webhooks"
"""Announced when there is something to deliver; with an endpoint's id when what was read of it is true no more."""


async def emit(
    tx: Transaction, event: WebhookEvent, *, subject: Subject | None = None, data: Mapping[str, Scalar] | None = None
) -> UUID:
    """Tell every endpoint that has subscribed to `event`, if and when `tx` commits; returns the event's id.

    `data` are scalars by names in small letters, and no customer's content. Raises ValueError for anything else.
    """
    event_id, at = await _write_event(tx, event, subject, data or {})
    deliveries = await tx.change(
        """
        INSERT INTO webhook_deliveries (endpoint_id, event_id, created_at, next_attempt_at)
        SELECT id, $1, $2, $2 FROM webhook_endpoints WHERE enabled AND events && ARRAY[$3, '*']
        """,
        event_id,
        at,
        event.value,
    )
    if deliveries:
        tx.announce(CHANNEL)
    return event_id


async def emit_to(tx: Transaction, endpoint_id: UUID, event: WebhookEvent, *, data: Mapping[str, Scalar]) -> UUID:
    """As `emit`, to one endpoint, whatever it has subscribed to; returns the delivery's id."""
    event_id, at = await _write_event(tx, event, None, data)
    delivery_id: UUID = await tx.fetchval(
        """
        INSERT INTO webhook_deliveries (endpoint_id, event_id, created_at, next_attempt_at) VALUES ($1, $2, $3, $3)
        RETURNING id
        """,
        endpoint_id,
        event_id,
        at,
    )
    tx.announce(CHANNEL)
    return delivery_id


async def _write_event(
    tx: Transaction, event: WebhookEvent, subject: Subject | None, data: Mapping[str, Scalar]
) -> tuple[UUID, datetime]:
    event_id, at = uuid4(), datetime.now(UTC)
    install_id: UUID = await tx.fetchval("SELECT install_id FROM panel_installation")
    body = payload(event, event_id=event_id, at=at, install_id=install_id, subject=subject, data=data)
    await tx.execute(
        "INSERT INTO webhook_events (id, event, at, body) VALUES ($1, $2, $3, $4)", event_id, event.value, at, body
    )
    return event_id, at
