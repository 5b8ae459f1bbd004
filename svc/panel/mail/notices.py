"""A mail to the owner of a site whose mail is held."""

from __future__ import annotations

from functools import partial

import structlog

from svc.identity.mail_texts import body, utc
from svc.identity.notices import write_notice
from svc.identity.person_records import person
from svc.identity.settings import read_settings
from svc_actors.mail import MailKind, Outbox
from svc_actors.mail.messages import one_line
from svc_actors.panel.mail.holds import Hold, TellOwner
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction

log = structlog.get_logger(__name__)


def telling_owners(outbox: Outbox) -> TellOwner:
    return partial(_tell, outbox)


async def _tell(outbox: Outbox, tx: Transaction, site: SiteRow, hold: Hold) -> None:
    """Queue the mail. If the queue is full, that is only logged: the site's mail is held all the same."""
    if not outbox.configured:
        return
    owner = await person(tx, site.owner_id)
    end = "until you or your provider release it" if hold.until is None else f"until {utc(hold.until)}"
    text = body(
        await read_settings(tx),
        f"Hello {one_line(owner.name)},",
        f"the mail of your site {site.domain} is held {end}:",
        f"    {one_line(hold.reason, 1500)}",
        "What the site wants to send is refused meanwhile. Mail that was accepted before is still delivered.",
        "If you did not expect this, one of the programs above may have been placed by an attacker: look at it first. "
        "You get at most one mail a day about this.",
        f"The mails, and how to release them: {outbox.base_url}/#/sites/{site.id}/mail",
    )
    subject = f"The mail of {site.domain} is held"
    refusal = await write_notice(tx, outbox, owner, kind=MailKind.ALERTS, subject=subject, text=text)
    if refusal is not None:
        log.warning("site_mail.notice_not_written", site=str(site.id), error=refusal.message)
