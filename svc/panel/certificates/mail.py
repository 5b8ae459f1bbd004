"""Mails the owner of a site whose certificate cannot be obtained, while there is time to fix the cause."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from svc.identity.mail_texts import body, utc
from svc.identity.person_records import person
from svc.identity.settings import read_settings
from svc_actors.certificates import IssuanceFailure
from svc_actors.mail import MailKind, NewMail, Outbox
from svc_actors.mail.messages import one_line
from svc_actors.panel.certificates.trouble import TellOwner
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError

_LASTS: Final = timedelta(days=2)

log = structlog.get_logger(__name__)


def telling_owners(outbox: Outbox) -> TellOwner:
    return partial(_tell, outbox)


async def _tell(outbox: Outbox, tx: Transaction, site: SiteRow, trouble: IssuanceFailure) -> None:
    """Queue the mail. If the queue is full, that is only logged: the failure is recorded all the same."""
    if not outbox.configured:
        return
    settings, owner = await read_settings(tx), await person(tx, site.owner_id)
    names = ", ".join(trouble.names)
    if trouble.partly:
        subject = f"The certificate of {site.domain} does not have all names"
        what = f"the certificate of your site {site.domain} is without {names}:"
        meanwhile = "Visitors of these names get a warning over HTTPS. The other names of the site are not affected."
        again = "They are retried automatically. You get no further mail about them until they have a certificate."
    else:
        subject = f"No certificate for {site.domain}"
        what = f"your site {site.domain} gets no new certificate. The authority or this server says:"
        meanwhile = (
            f"Visitors get the current certificate until {utc(trouble.not_after)}."
            if trouble.not_after is not None
            else "Until there is one, visitors cannot open the site over HTTPS."
        )
        again = (
            f"It is retried automatically, next at {utc(trouble.next_attempt_at)}. You get no further mail about it "
            "until a certificate was issued."
        )
    text = body(
        settings,
        f"Hello {one_line(owner.name)},",
        what,
        f"    {one_line(str(trouble.error), 1500)}",
        meanwhile,
        again,
        f"The names, and what to fix: {outbox.base_url}/#/sites/{site.id}/certificate",
    )
    mail = NewMail(
        kind=MailKind.CERTIFICATE,
        recipient=owner.email,
        subject=subject,
        text=text,
        lasts=_LASTS,
        user_id=owner.id,
    )
    try:
        await outbox.write(tx, mail)
    except ServiceError as error:
        # Both errors are raised before the queue is written, so the transaction can continue.
        if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.INVALID):
            raise
        log.warning("certificate.mail_not_written", site=str(site.id), error=error.message)
