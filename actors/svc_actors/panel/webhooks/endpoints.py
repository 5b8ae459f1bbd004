"""The panel's webhook endpoints: their subscriptions, and the events and alerts about changes of an endpoint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.sealing import Sealer
from svc_actors.store import NewEvent, Transaction, events
from svc_actors.webhooks import endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoints import Issued
from svc_actors.webhooks.receivers import ReceiverUrl

EVERY_EVENT: Final = "*"


def subscription(names: Sequence[str]) -> list[str]:
    """In its stored form: `*` alone, or names in the order of the specification, without duplicates."""
    if EVERY_EVENT in names:
        return [EVERY_EVENT]
    return [event.value for event in WebhookEvent if event.value in names]


async def create(tx: Transaction, sealer: Sealer, url: str, names: Sequence[str], *, enabled: bool) -> Issued:
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
