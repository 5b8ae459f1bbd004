"""Alerts by mail to operators: what opened and what closed, several in one mail.

Invariants:
- an operator gets one mail when an alert opens, one when it becomes critical and one when it has closed. Each is queued
  in the transaction that records it (`alerts_mailed`). An alert that closed before it was mailed is never mailed;
- alerts are collected for `GATHER`, and an operator gets at most one mail of alerts per `PAUSE`: a node that goes down
  with a hundred machines makes one mail, and an alert that flaps at most twelve an hour;
- each operator chooses the lowest severity that is mailed. Acknowledged alerts are not mailed, nor is the alert about
  mail itself.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from svc.identity import mail_texts
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.alerts import Severity
from svc_actors.mail import MailKind, NewMail, Outbox
from svc_actors.mail.alert import OWN_MAIL
from svc_actors.store import Database, Record, Target, Transaction, audit
from svc_common.errors import ErrorCode, ServiceError

operations = Operations[IdentityServices]()

LOOK_SECONDS: Final = 10.0
GATHER: Final = timedelta(seconds=30)
"""All alerts of one cause open within this time, and an alert that closes within it needs nobody's attention."""
PAUSE: Final = timedelta(minutes=5)
_LASTS: Final = timedelta(days=1)

log = structlog.get_logger(__name__)


class LeastSeverity(StrEnum):
    NONE = "none"
    CRITICAL = "critical"
    WARNING = "warning"


_MAILED: Final = {
    LeastSeverity.CRITICAL: [Severity.CRITICAL.value],
    LeastSeverity.WARNING: [Severity.CRITICAL.value, Severity.WARNING.value],
}


class AlertMail(Model):
    """The least severity of the alerts that the caller gets by mail."""

    least: LeastSeverity


class AlertMailRequest(Request):
    least: LeastSeverity


@operations.declare(
    "alert.mail",
    "The severity from which the caller gets alerts by mail",
    Route.get("/alerts/mail"),
    access=Access.STAFF,
    scope=Scope.READ,
)
async def show(context: Context[IdentityServices], request: Empty) -> AlertMail:
    least = await context.services.database.fetchval(
        "SELECT alert_mail FROM users WHERE id = $1", context.principal.user_id
    )
    return AlertMail(least=LeastSeverity(least))


@operations.declare(
    "alert.set_mail",
    "Set the severity from which alerts are mailed: none, critical or warning",
    Route.put("/alerts/mail"),
    access=Access.STAFF,
    scope=Scope.WRITE,
    positional=("least",),
    target="user",
)
async def choose(context: Context[IdentityServices], request: AlertMailRequest) -> AlertMail:
    principal = context.principal

    async def work(tx: Transaction) -> AlertMail:
        await tx.execute("UPDATE users SET alert_mail = $2 WHERE id = $1", principal.user_id, request.least)
        target = Target("user", principal.user_id, principal.email)
        await audit.record(tx, context.caller, target, {"alert_mail": request.least.value})
        return AlertMail(least=request.least)

    return await context.services.database.transact(work)


async def tell_operators(database: Database, outbox: Outbox) -> None:
    """One round: mail each operator the alerts that have opened, become critical or closed since their last mail."""
    operators = await database.fetch(
        """
        SELECT id FROM users AS u
        WHERE role IN ('administrator', 'staff') AND suspended_at IS NULL AND alert_mail <> 'none'
          AND NOT EXISTS (
              SELECT FROM mails WHERE user_id = u.id AND kind = 'alerts' AND created_at > now() - $1::interval
          )
        """,
        PAUSE,
    )
    for operator in operators:
        await database.transact(partial(_tell, outbox, operator["id"]))
    # Operators who no longer get alert mail are not notified when earlier alerts close.
    await database.execute(
        """
        DELETE FROM alerts_mailed WHERE user_id IN (
            SELECT id FROM users WHERE alert_mail = 'none' OR suspended_at IS NOT NULL OR role = 'customer'
        )
        """
    )


async def _tell(outbox: Outbox, user_id: UUID, tx: Transaction) -> None:
    operator = await tx.fetchone("SELECT email, alert_mail, now() AS at FROM users WHERE id = $1", user_id)
    least = LeastSeverity(operator["alert_mail"])
    if least is LeastSeverity.NONE:
        return
    opened = await tx.fetch(
        """
        SELECT a.id, a.severity, a.message, a.opened_at AS at
        FROM alerts AS a LEFT JOIN alerts_mailed AS m ON m.alert_id = a.id AND m.user_id = $1
        WHERE a.closed_at IS NULL AND a.acknowledged_at IS NULL AND a.severity = ANY($2) AND a.key <> $3
          AND (m.alert_id IS NULL OR (m.severity = 'warning' AND a.severity = 'critical'))
        ORDER BY a.severity = 'critical' DESC, a.opened_at
        """,
        user_id,
        _MAILED[least],
        OWN_MAIL,
    )
    closed = await tx.fetch(
        """
        SELECT a.id, a.severity, a.message, a.closed_at AS at
        FROM alerts_mailed AS m JOIN alerts AS a ON a.id = m.alert_id
        WHERE m.user_id = $1 AND a.closed_at IS NOT NULL ORDER BY a.closed_at
        """,
        user_id,
    )
    if _oldest(opened, closed) > operator["at"] - GATHER:
        return
    subject, text = mail_texts.alerts(await read_settings(tx), f"{outbox.base_url}/#/alerts", opened, closed)
    mail = NewMail(
        kind=MailKind.ALERTS,
        recipient=operator["email"],
        subject=subject,
        text=text,
        lasts=_LASTS,
        user_id=user_id,
    )
    try:
        await outbox.write(tx, mail)
    except ServiceError as error:
        if error.code is not ErrorCode.INVALID:
            raise
        log.warning("alert.mail_not_written", user_id=str(user_id), error=error.message)
    await tx.execute(
        """
        INSERT INTO alerts_mailed (user_id, alert_id, severity)
        SELECT $1, alert_id, severity FROM unnest($2::uuid[], $3::text[]) AS told (alert_id, severity)
        ON CONFLICT (user_id, alert_id) DO UPDATE SET severity = excluded.severity
        """,
        user_id,
        [row["id"] for row in opened],
        [row["severity"] for row in opened],
    )
    await tx.execute(
        "DELETE FROM alerts_mailed WHERE user_id = $1 AND alert_id = ANY($2)", user_id, [row["id"] for row in closed]
    )


def _oldest(opened: list[Record], closed: list[Record]) -> datetime:
    """The time of the oldest change that was not mailed yet; a time in the far future if there is none."""
    return min((row["at"] for row in [*opened, *closed]), default=datetime.max.replace(tzinfo=UTC))
