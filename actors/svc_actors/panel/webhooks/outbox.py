"""Writes the panel's webhook events for the endpoints that have subscribed to them.

await emit(tx, WebhookEvent.SITE_CREATED, subject=Subject("site", str(site.id), site.domain), data={"type": "php"})
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.store import Transaction
from svc_actors.webhooks.outbox import CHANNEL, Written, deliver_to, write_event
from svc_actors.webhooks.payload import Scalar, Subject


async def emit(
    tx: Transaction, event: WebhookEvent, *, subject: Subject | None = None, data: Mapping[str, Scalar] | None = None
) -> UUID:
    """Notify every endpoint that has subscribed to `event`, if and when `tx` commits; returns the event's id.

    `data` are scalars with lower-case names, and no customer's content. Raises ValueError for anything else.
    """
    written = await _write(tx, event, subject, data or {})
    deliveries = await tx.change(
        """
        INSERT INTO webhook_deliveries (endpoint_id, event_id, created_at, next_attempt_at)
        SELECT id, $1, $2, $2 FROM webhook_endpoints WHERE enabled AND events && ARRAY[$3, '*']
        """,
        written.id,
        written.at,
        event.value,
    )
    if deliveries:
        tx.announce(CHANNEL)
    return written.id


async def emit_to(tx: Transaction, endpoint_id: UUID, event: WebhookEvent, *, data: Mapping[str, Scalar]) -> UUID:
    """As `emit`, to one endpoint, whatever its subscription; returns the delivery's id."""
    return await deliver_to(tx, endpoint_id, await _write(tx, event, None, data))


async def _write(tx: Transaction, event: WebhookEvent, subject: Subject | None, data: Mapping[str, Scalar]) -> Written:
    install_id: UUID = await tx.fetchval("SELECT install_id FROM panel_installation")
    return await write_event(tx, event.value, server={"install_id": str(install_id)}, subject=subject, data=data)
