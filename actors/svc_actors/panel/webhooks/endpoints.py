"""The endpoints: the only writer of `webhook_endpoints`.

Invariants: there are at most `MOST_ENDPOINTS`, however many are made at once; a secret is in the database sealed only,
and leaves this module when it is made, when it is rotated, and to sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.errors import ServiceError, conflict, not_found
from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.panel.webhooks.outbox import CHANNEL
from svc_actors.panel.webhooks.receivers import ReceiverUrl
from svc_actors.panel.webhooks.signature import new_webhook_secret
from svc_actors.sealing import Sealer
from svc_actors.store import NewEvent, Record, Transaction, events

MOST_ENDPOINTS: Final = 20
EVERY_EVENT: Final = "*"


@dataclass(frozen=True)
class Issued:
    """An endpoint with its secret, which is shown this once."""

    id: UUID
    secret: str


def subscription(wanted: Sequence[str]) -> list[str]:
    """As it is stored: `*` alone, or names in the order of the specification, each once."""
    if EVERY_EVENT in wanted:
        return [EVERY_EVENT]
    return [event.value for event in WebhookEvent if event.value in wanted]


async def create(tx: Transaction, sealer: Sealer, url: str, wanted: Sequence[str], *, enabled: bool) -> Issued:
    """Raises `conflict` where there are as many as there may be."""
    # Whoever makes one waits for whoever is making one: a count alone would let both in.
    await tx.execute("SELECT FROM panel_installation FOR NO KEY UPDATE")
    if await tx.fetchval("SELECT count(*) FROM webhook_endpoints") >= MOST_ENDPOINTS:
        raise conflict(
            f"There are {MOST_ENDPOINTS} webhook endpoints, which is the most.", hint="Delete one that is not needed."
        )
    issued = Issued(uuid4(), new_webhook_secret())
    await tx.execute(
        "INSERT INTO webhook_endpoints (id, url, events, enabled, sealed_secret, last_four)"
        " VALUES ($1, $2, $3, $4, $5, $6)",
        issued.id,
        url,
        subscription(wanted),
        enabled,
        _sealed(sealer, issued),
        issued.secret[-4:],
    )
    await _announce(tx, issued.id)
    return issued


async def rotate(tx: Transaction, sealer: Sealer, endpoint_id: UUID) -> Issued:
    """A new secret, with which every later attempt is signed, of whatever delivery. Raises `not_found`."""
    issued = Issued(endpoint_id, new_webhook_secret())
    changed = await tx.change(
        "UPDATE webhook_endpoints SET sealed_secret = $2, last_four = $3, rotated_at = now() WHERE id = $1",
        endpoint_id,
        _sealed(sealer, issued),
        issued.secret[-4:],
    )
    if not changed:
        raise no_such_endpoint()
    await _announce(tx, endpoint_id)
    return issued


async def update(
    tx: Transaction, endpoint_id: UUID, *, url: str | None, wanted: Sequence[str] | None, enabled: bool | None
) -> None:
    """Change what is given. Deliveries that wait go to the new URL; while it is disabled they keep waiting. Raises
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
        raise no_such_endpoint()
    if enabled is False:
        await close_alert_of(tx, endpoint_id)
    await _announce(tx, endpoint_id)


async def delete(tx: Transaction, endpoint_id: UUID) -> Record:
    """Remove it with its deliveries, also those that wait. Raises `not_found`."""
    row = await tx.fetchrow("DELETE FROM webhook_endpoints WHERE id = $1 RETURNING url", endpoint_id)
    if row is None:
        raise no_such_endpoint()
    await close_alert_of(tx, endpoint_id)
    await _announce(tx, endpoint_id)
    return row


def secret_of(sealer: Sealer, endpoint_id: UUID, sealed: bytes) -> str:
    """Raises `CannotUnseal`."""
    return sealer.unseal(sealed, _purpose(endpoint_id)).decode()


def no_such_endpoint() -> ServiceError:
    return not_found("There is no such webhook endpoint.")


async def raise_alert_of(tx: Transaction, endpoint_id: UUID) -> None:
    """Deliveries to it were given up. Its URL is not named whole: receivers put keys of theirs into paths."""
    url = await tx.fetchval("SELECT url FROM webhook_endpoints WHERE id = $1 AND enabled", endpoint_id)
    if url is None:
        return
    host = ReceiverUrl.parse(url).host
    message = f"Webhooks to {host} are not delivered: `svc webhook deliveries {endpoint_id}` says why."
    await raise_alert(tx, _alert(endpoint_id), message, resource_kind="webhook", resource_id=endpoint_id)


async def close_alert_of(tx: Transaction, endpoint_id: UUID) -> None:
    await close_alert(tx, _alert(endpoint_id))


def _alert(endpoint_id: UUID) -> str:
    return f"webhook:{endpoint_id}"


async def _announce(tx: Transaction, endpoint_id: UUID) -> None:
    """For the pages that show it, and for what delivers to it."""
    await changed(tx, endpoint_id)
    tx.announce(CHANNEL, str(endpoint_id))


async def changed(tx: Transaction, endpoint_id: UUID) -> None:
    """Have pages look again at an endpoint or its deliveries."""
    event = NewEvent(
        kind=PanelEvent.WEBHOOK,
        subject=str(endpoint_id),
        administrators_only=True,
        payload={"id": str(endpoint_id)},
    )
    await events.append(tx, event)


def _sealed(sealer: Sealer, issued: Issued) -> bytes:
    return sealer.seal(issued.secret.encode(), _purpose(issued.id))


def _purpose(endpoint_id: UUID) -> str:
    return f"webhook:{endpoint_id}"
