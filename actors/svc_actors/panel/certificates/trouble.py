"""Notifies the owner of a site that gets no certificate, by mail and by an event, once until the cause is fixed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

from svc_actors.certificates import IssuanceFailure
from svc_actors.certificates.steps import Tell
from svc_actors.panel.certificates.records import site_of_name
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.store import Transaction

TellOwner = Callable[[Transaction, SiteRow, IssuanceFailure], Awaitable[None]]
"""Writes the mail to the site's owner."""


def telling(tell_owner: TellOwner) -> Tell:
    return partial(_tell, tell_owner)


async def _tell(tell_owner: TellOwner, tx: Transaction, trouble: IssuanceFailure) -> None:
    site_id = site_of_name(trouble.name)
    site = None if site_id is None else await read_site(tx, site_id)
    if site is None:
        return
    await emit(
        tx,
        WebhookEvent.SSL_FAILED,
        subject=Subject("site", str(site.id), site.domain),
        data={
            "names": ", ".join(trouble.names),
            "error": str(trouble.error)[:500],
            "served_until": _time(trouble.not_after),
            "next_attempt_at": _time(trouble.next_attempt_at),
        },
    )
    await tell_owner(tx, site, trouble)


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
