"""The panel's webhooks: their events (specification, Events), written for the endpoints that have subscribed to
them in the transaction of what they report; and the endpoints, with the events and alerts about their changes.

await emit(tx, WebhookEvent.SITE_CREATED, subject=Subject("site", str(site.id), site.domain), data={"type": "php"})
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.sealing import Sealer
from svc_actors.store import NewEvent, Transaction, events
from svc_actors.webhooks import endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoints import EndpointSecret
from svc_actors.webhooks.outbox import CHANNEL, StoredEvent, deliver_to, write_event
from svc_actors.webhooks.payload import Scalar as Scalar
from svc_actors.webhooks.payload import Subject as Subject
from svc_actors.webhooks.receivers import ReceiverUrl

EVERY_EVENT: Final = "*"


class WebhookEvent(StrEnum):
    """All events; a subscription to `*` stands for all of them."""

    BACKUP_COMPLETED = "backup.completed"
    BACKUP_FAILED = "backup.failed"
    BACKUP_REMOTE_FAILED = "backup.remote_failed"
    SSL_ISSUED = "ssl.issued"
    SSL_FAILED = "ssl.failed"
    HEALTH_CRITICAL = "health.critical"
    SITE_CREATED = "site.created"
    SITE_SUSPENDED = "site.suspended"
    SITE_UNSUSPENDED = "site.unsuspended"
    UPDATE_INSTALLED = "update.installed"
    JOB_FAILED = "job.failed"
    MIGRATION_COMPLETED = "migration.completed"
    RECOVERY_COMPLETED = "recovery.completed"


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


async def _write(
    tx: Transaction, event: WebhookEvent, subject: Subject | None, data: Mapping[str, Scalar]
) -> StoredEvent:
    install_id: UUID = await tx.fetchval("SELECT install_id FROM panel_installation")
    return await write_event(tx, event.value, server={"install_id": str(install_id)}, subject=subject, data=data)


def subscription(names: Sequence[str]) -> list[str]:
    """The stored form of a subscription: `*` alone, or names in the order of the specification, without duplicates."""
    if EVERY_EVENT in names:
        return [EVERY_EVENT]
    return [event.value for event in WebhookEvent if event.value in names]


async def create(tx: Transaction, sealer: Sealer, url: str, names: Sequence[str], *, enabled: bool) -> EndpointSecret:
    """Raises `conflict` if there are as many as allowed."""
    return await endpoints.create(
        tx,
        sealer,
        """INSERT INTO webhook_endpoints (id, sealed_secret, last_four, url, events, enabled)
           VALUES ($1, $2, $3, $4, $5, $6)""",
        url,
        subscription(names),
        enabled,
    )


async def update(
    tx: Transaction, endpoint_id: UUID, *, url: str | None, names: Sequence[str] | None, enabled: bool | None
) -> None:
    """As `endpoints.update`. Raises `not_found`."""
    selected = None if names is None else subscription(names)
    await endpoints.update(
        tx,
        endpoint_id,
        """UPDATE webhook_endpoints SET url = coalesce($2, url), events = coalesce($3, events),
                                        enabled = coalesce($4, enabled)
           WHERE id = $1""",
        url,
        selected,
        enabled,
    )
    if enabled is False:
        await close_alert(tx, endpoints.alert_key(endpoint_id))


async def after_round(tx: Transaction, endpoint_id: UUID, ended: Collection[DeliveryStatus]) -> None:
    """Update pages, and the operator's alert about an endpoint that no longer accepts deliveries."""
    await changed(tx, endpoint_id)
    if DeliveryStatus.FAILED in ended:
        await _raise_alert(tx, endpoint_id)
    elif DeliveryStatus.DELIVERED in ended:
        await close_alert(tx, endpoints.alert_key(endpoint_id))


async def _raise_alert(tx: Transaction, endpoint_id: UUID) -> None:
    """Deliveries to the endpoint were given up: raise an alert. It shows only the host of the endpoint's URL, because
    receivers put keys into paths."""
    url = await tx.fetchval("SELECT url FROM webhook_endpoints WHERE id = $1 AND enabled", endpoint_id)
    if url is None:
        return
    host = ReceiverUrl.parse(url).host
    message = f"Webhooks to {host} are not delivered: `svc webhook deliveries {endpoint_id}` says why."
    await raise_alert(tx, endpoints.alert_key(endpoint_id), message, resource_kind="webhook", resource_id=endpoint_id)


async def changed(tx: Transaction, endpoint_id: UUID) -> None:
    """Make pages reload an endpoint or its deliveries."""
    event = NewEvent(
        kind=PanelEvent.WEBHOOK,
        subject=str(endpoint_id),
        administrators_only=True,
        payload={"id": str(endpoint_id)},
    )
    await events.append(tx, event)
