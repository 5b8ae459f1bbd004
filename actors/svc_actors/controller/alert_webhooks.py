"""Alerts to operators by signed webhooks: the receivers, which notifications each gets, and when.

Invariants:
- a receiver is notified when an alert opens, becomes critical, is acknowledged by an operator, and is closed. Each
  notification is sent once, in the transaction that records it (`webhook_alerts`). An alert that closed before its
  first notification is not sent at all;
- changes while a receiver is disabled are sent when it is enabled again, if they still apply;
- a receiver is disabled after `MOST_FAILURES` failed deliveries in a row; an alert says so until it is enabled again;
- alerts about webhooks are not sent by webhook: two failing receivers would notify each other for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Final
from uuid import UUID

from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Record, Transaction
from svc_actors.webhooks import endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoints import ALERTS, EndpointSecret
from svc_actors.webhooks.outbox import deliver_to, write_event
from svc_actors.webhooks.payload import Scalar, Subject
from svc_actors.webhooks.receivers import ReceiverUrl

MOST_FAILURES: Final = 10

LOOK_SECONDS: Final = 2.0
_MOST_A_ROUND: Final = 200
"""Alerts sent to one receiver in one transaction; the rest follow in the next round."""
_TOLD: Final = {
    Severity.CRITICAL: [Severity.CRITICAL.value],
    Severity.WARNING: [Severity.CRITICAL.value, Severity.WARNING.value],
}


async def create(tx: Transaction, sealer: Sealer, url: str, least: Severity) -> EndpointSecret:
    """Create a receiver of alerts from the severity `least` on. Raises `conflict` if the limit of endpoints is
    reached."""
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


class AlertEvent(StrEnum):
    OPENED = "alert.opened"
    ESCALATED = "alert.escalated"
    ACKNOWLEDGED = "alert.acknowledged"
    RESOLVED = "alert.resolved"
    TEST = "alert.test"


async def tell_receivers(database: Database) -> None:
    """One round: queue deliveries for each receiver that has alerts to be notified of."""
    for row in await database.fetch("SELECT id FROM webhook_endpoints WHERE enabled ORDER BY id"):
        await database.transact(partial(_tell, endpoint_id=row["id"]))


async def tell_test(tx: Transaction, endpoint_id: UUID) -> UUID:
    """Queue a test delivery, which is about no alert; returns its id."""
    written = await write_event(tx, AlertEvent.TEST, server={}, subject=None, data={"test": True})
    return await deliver_to(tx, endpoint_id, written)


async def _tell(tx: Transaction, *, endpoint_id: UUID) -> None:
    least = await tx.fetchval(
        "SELECT least FROM webhook_endpoints WHERE id = $1 AND enabled FOR NO KEY UPDATE", endpoint_id
    )
    if least is None:
        return
    opened = await tx.fetch(
        """
        SELECT a.* FROM alerts AS a
        WHERE a.closed_at IS NULL AND a.severity = ANY($2) AND NOT starts_with(a.key, $3)
          AND NOT EXISTS (SELECT FROM webhook_alerts AS t WHERE t.endpoint_id = $1 AND t.alert_id = a.id)
        ORDER BY a.severity = 'critical' DESC, a.opened_at, a.id LIMIT $4
        """,
        endpoint_id,
        _TOLD[Severity(least)],
        ALERTS,
        _MOST_A_ROUND,
    )
    for alert in opened:
        await _deliver(tx, endpoint_id, AlertEvent.OPENED, alert)
    changed = await tx.fetch(
        """
        SELECT a.*, t.severity AS told_severity FROM webhook_alerts AS t JOIN alerts AS a ON a.id = t.alert_id
        WHERE t.endpoint_id = $1 AND (a.closed_at IS NOT NULL OR (t.severity = 'warning' AND a.severity = 'critical')
          OR (a.acknowledged_at IS NOT NULL AND NOT t.acknowledged))
        ORDER BY a.opened_at, a.id LIMIT $2
        """,
        endpoint_id,
        _MOST_A_ROUND,
    )
    for alert in changed:
        await _deliver(tx, endpoint_id, _change(alert), alert)


def _change(alert: Record) -> AlertEvent:
    if alert["closed_at"] is not None:
        return AlertEvent.RESOLVED
    if alert["told_severity"] != alert["severity"] and alert["severity"] == Severity.CRITICAL:
        return AlertEvent.ESCALATED
    return AlertEvent.ACKNOWLEDGED


async def _deliver(tx: Transaction, endpoint_id: UUID, event: AlertEvent, alert: Record) -> None:
    subject = Subject("alert", str(alert["id"]), alert["key"])
    written = await write_event(tx, event, server={}, subject=subject, data=_data(alert))
    await deliver_to(tx, endpoint_id, written)
    if event is AlertEvent.RESOLVED:
        await tx.execute(
            "DELETE FROM webhook_alerts WHERE endpoint_id = $1 AND alert_id = $2", endpoint_id, alert["id"]
        )
        return
    await tx.execute(
        """
        INSERT INTO webhook_alerts (endpoint_id, alert_id, severity, acknowledged) VALUES ($1, $2, $3, $4)
        ON CONFLICT (endpoint_id, alert_id)
            DO UPDATE SET severity = excluded.severity, acknowledged = excluded.acknowledged
        """,
        endpoint_id,
        alert["id"],
        alert["severity"],
        alert["acknowledged_at"] is not None,
    )


def _data(alert: Record) -> dict[str, Scalar]:
    """The alert in the form that GET /alerts shows to operators."""
    texts = ("severity", "message", "resource_kind", "resource_id")
    times = ("opened_at", "acknowledged_at", "closed_at")
    who = alert["acknowledged_by"]
    return (
        {name: alert[name] for name in texts}
        | {name: alert[name].isoformat() if alert[name] is not None else None for name in times}
        | {"acknowledged_by": str(who) if who is not None else None}
    )
