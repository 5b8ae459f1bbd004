"""The webhook receivers of alerts.

Invariants:
- a receiver is disabled after `MOST_FAILURES` failed deliveries in a row; an alert says so until it is enabled again;
- no alert about a webhook is sent by webhook (`telling`): a failing receiver cannot cause its own next failure.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.sealing import Sealer
from svc_actors.store import Transaction
from svc_actors.webhooks import endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoints import Issued
from svc_actors.webhooks.receivers import ReceiverUrl

MOST_FAILURES: Final = 10


async def create(tx: Transaction, sealer: Sealer, url: str, least: Severity) -> Issued:
    """Raises `conflict` if the limit of endpoints is reached."""
    return await endpoints.create(
        tx,
        sealer,
        """INSERT INTO webhook_endpoints (id, sealed_secret, last_four, url, least, enabled_at)
           VALUES ($1, $2, $3, $4, $5, $6)""",
        url,
        least.value,
        datetime.now(UTC),
    )


async def update(
    tx: Transaction, endpoint_id: UUID, *, url: str | None, least: Severity | None, enabled: bool | None
) -> None:
    """As `endpoints.update`; once the receiver is enabled, earlier failures no longer count. Raises `not_found`."""
    await endpoints.update(
        tx,
        endpoint_id,
        # Everything in one statement, so that the old value of `enabled` is read under the row's lock: a delivery that
        # failed meanwhile may have disabled the receiver.
        """UPDATE webhook_endpoints SET url = coalesce($2, url), least = coalesce($3, least),
                                        enabled = coalesce($4, enabled),
                                        enabled_at = CASE WHEN $4 AND NOT enabled THEN $5 ELSE enabled_at END
           WHERE id = $1""",
        url,
        least,
        enabled,
        datetime.now(UTC),
    )
    if enabled is not None:
        await close_alert(tx, endpoints.alert_key(endpoint_id))


async def after_round(tx: Transaction, endpoint_id: UUID, ended: Collection[DeliveryStatus]) -> None:
    """Raise an alert about a receiver whose deliveries fail, and disable it after `MOST_FAILURES` of them."""
    if DeliveryStatus.FAILED not in ended:
        if DeliveryStatus.DELIVERED in ended:
            await close_alert(tx, endpoints.alert_key(endpoint_id))
        return
    url = await tx.fetchval(
        "SELECT url FROM webhook_endpoints WHERE id = $1 AND enabled FOR NO KEY UPDATE", endpoint_id
    )
    if url is None:
        return
    # The alert names only the host: receivers put secrets into the path of the URL.
    host = ReceiverUrl.parse(url).host
    why = f"`svc alert deliveries {endpoint_id}` says why"
    failures = await _failures_in_a_row(tx, endpoint_id)
    if failures < MOST_FAILURES:
        message, severity = f"Alerts are not delivered to the webhook at {host}: {why}.", Severity.WARNING
    else:
        await tx.execute("UPDATE webhook_endpoints SET enabled = false WHERE id = $1", endpoint_id)
        endpoints.announce(tx, endpoint_id)
        message = (
            f"The webhook at {host} was disabled after {failures} failed deliveries in a row and gets no alerts."
            f" {why}; `svc alert update-webhook {endpoint_id} --enabled` enables it again."
        )
        severity = Severity.CRITICAL
    await raise_alert(
        tx,
        endpoints.alert_key(endpoint_id),
        message,
        severity=severity,
        resource_kind="webhook",
        resource_id=endpoint_id,
    )


async def _failures_in_a_row(tx: Transaction, endpoint_id: UUID) -> int:
    """Failed deliveries since the last successful one, or since the receiver was enabled."""
    failures: int = await tx.fetchval(
        """
        SELECT count(*) FROM webhook_deliveries AS d JOIN webhook_endpoints AS e ON e.id = d.endpoint_id
        WHERE e.id = $1 AND d.status = 'failed' AND d.attempted_at > greatest(e.enabled_at, (
            SELECT max(attempted_at) FROM webhook_deliveries WHERE endpoint_id = $1 AND status = 'delivered'
        ))
        """,
        endpoint_id,
    )
    return failures
