"""The background loops of the operations that services share: they deliver mail, mail requested links, notify operators
of alerts, seal the audit, fold the counts of lists, and remove what has expired."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from svc.identity import pending_sign_ins
from svc.identity.alert_mail import LOOK_SECONDS as ALERT_MAIL_SECONDS
from svc.identity.alert_mail import tell_operators
from svc.identity.password_links import ResetRequests, forget_old_links
from svc.identity.throttle import forget_old_failures
from svc.registry.idempotency import forget_expired
from svc_actors.alerts import close_alert, forget_closed_alerts
from svc_actors.mail import Delivery, MailSettings, Outbox
from svc_actors.mail.alert import OWN_MAIL, DeliveryAlert
from svc_actors.mail.queue import QueuedMails
from svc_actors.store import Database, Loops, ServiceLoop, counts
from svc_actors.store.audit_seals import SEAL_SECONDS, AuditSealer

FORGET_SECONDS = 600.0


async def add_identity_loops(
    loops: Loops[ServiceLoop],
    database: Database,
    outbox: Outbox,
    mail: MailSettings | None,
    counted: Sequence[str],
) -> None:
    """Start the loops. `counted` are the views whose counts are maintained for the service's lists."""
    if mail is None:
        # Without a mail configuration there are no deliveries that would close this alert, so it is closed here.
        await database.transact(partial(close_alert, key=OWN_MAIL))
    else:
        alert = DeliveryAlert.of_own_mail(database)
        loops.keep("mail delivery", Delivery(database, QueuedMails(database, outbox), mail, alert).run)
        asks = ResetRequests(database, outbox)
        loops.keep("password asks", asks.run, step=asks.round)
        loops.repeat("alert mail", ALERT_MAIL_SECONDS, partial(tell_operators, database, outbox))
    loops.keep("list counts", partial(counts.run, database, counted))
    loops.repeat("sealing the audit", SEAL_SECONDS, AuditSealer(database).round)
    loops.repeat("forgetting", FORGET_SECONDS, partial(_forget, database))


async def _forget(database: Database) -> None:
    """Remove what has expired: answers to idempotency keys, counts of failed sign-ins, links to set a password, pending
    sign-ins, alerts closed long ago."""
    await forget_expired(database)
    await forget_old_failures(database)
    await forget_old_links(database)
    await pending_sign_ins.forget_expired(database)
    await forget_closed_alerts(database)
