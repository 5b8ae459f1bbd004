"""The panel's webhook endpoints: their subscriptions, and the events and alerts about changes of an endpoint.

The only writer of `webhook_endpoints`, with what it shares with other services (`svc_actors.webhooks.endpoints`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.sealing import Sealer
from svc_actors.store import NewEvent, Record, Transaction, events
from svc_actors.webhooks import endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoints import Issued
from svc_actors.webhooks.receivers import ReceiverUrl

EVERY_EVENT: Final = "*"


def subscription(wanted: Sequence[str]) -> list[str]:
    """In its stored form: `*` alone, or names in the order of the specification, without duplicates."""
    if EVERY_EVENT in wanted:
        return [EVERY_EVENT]
    return [event.value for event in WebhookEvent if event.value in wanted]


async def create(tx: Transaction, sealer: Sealer, url: str, wanted: Sequence[str], *, enabled: bool) -> Issued:
    """Raises `conflict` if there are as many as allowed."""
    issued = await endpoints.issue(tx)
    await tx.execute(
        "INSERT INTO webhook_endpoints (id, url, events, enabled, sealed_secret, last_four)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        issued.id,
        url,
        subscription(wanted),
        enabled,
        issued.sealed(sealer),
        issued.last_four,
    )
    await _changed(tx, issued.id)
    endpoints.announce(tx, issued.id)
    return issued


async def rotate(tx: Transaction, sealer: Sealer, endpoint_id: UUID) -> Issued:
    """A new secret, which signs every later attempt, also of earlier deliveries. Raises `not_found`."""
    issued = await endpoints.rotate(tx, sealer, endpoint_id)
    await _changed(tx, endpoint_id)
    return issued


async def update(
    tx: Transaction, endpoint_id: UUID, *, url: str | None, wanted: Sequence[str] | None, enabled: bool | None
) -> None:
    """Change the given values. Waiting deliveries go to the new URL; while it is disabled they keep waiting. Raises
    `not_found`."""
    changed = await tx.change(
        """
        UPDATE webhook_endpoints SET url = coalesce($2, url), events = coalesce($3, events),
            enabled = coalesce($4, enabled) WHERE id = $1
        """,
        endpoint_id,
        url,
        None if wanted is None else subscription(wanted),
        enabled,
    )
    if not changed:
        raise endpoints.no_such_endpoint()
    if enabled is False:
        await close_alert(tx, endpoints.alert_key(endpoint_id))
    await _changed(tx, endpoint_id)
    endpoints.announce(tx, endpoint_id)


async def delete(tx: Transaction, endpoint_id: UUID) -> Record:
    """Remove it with its deliveries, including waiting ones. Raises `not_found`."""
    row = await endpoints.delete(tx, endpoint_id)
    await close_alert(tx, endpoints.alert_key(endpoint_id))
    await _changed(tx, endpoint_id)
    return row


async def after_round(tx: Transaction, endpoint_id: UUID, ended: Collection[DeliveryStatus]) -> None:
    """Updates pages, and the operator's alert about an endpoint that no longer accepts deliveries."""
    await _changed(tx, endpoint_id)
    if DeliveryStatus.FAILED in ended:
        await _raise_alert(tx, endpoint_id)
    elif DeliveryStatus.DELIVERED in ended:
        await close_alert(tx, endpoints.alert_key(endpoint_id))


async def _raise_alert(tx: Transaction, endpoint_id: UUID) -> None:
    """Deliveries to it were given up. The alert shows only the host of its URL: receivers put keys into paths."""
    url = await tx.fetchval("SELECT url FROM webhook_endpoints WHERE id = $1 AND enabled", endpoint_id)
    if url is None:
        return
    host = ReceiverUrl.parse(url).host
    message = f"Webhooks to {host} are not delivered: `svc webhook deliveries {endpoint_id}` says why."
    await raise_alert(tx, endpoints.alert_key(endpoint_id), message, resource_kind="webhook", resource_id=endpoint_id)


async def _changed(tx: Transaction, endpoint_id: UUID) -> None:
    """Make pages reload an endpoint or its deliveries."""
    event = NewEvent(
        kind=PanelEvent.WEBHOOK,
        subject=str(endpoint_id),
        administrators_only=True,
        payload={"id": str(endpoint_id)},
    )
    await events.append(tx, event)
