"""A mail about a sign-in from a browser or an address that is new to the account."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog

from svc.identity import mail_texts
from svc.identity.notices import write_notice
from svc.identity.person_records import Person
from svc.identity.settings import read_settings
from svc.identity.throttle import Recognition
from svc_actors.mail import MailKind, Outbox
from svc_actors.store import Transaction

MAILS_AN_HOUR: Final = 5
"""A limit, so that somebody who has the password cannot fill the mailbox with notices of it."""

log = structlog.get_logger(__name__)


async def tell(
    tx: Transaction, outbox: Outbox, person: Person, recognised: Recognition, address: str, user_agent: str | None
) -> None:
    """Write the mail if the browser or the address is new. `person` is as before the sign-in. A full queue is logged
    and never prevents the sign-in."""
    new = recognised.new
    if new is None or person.last_sign_in_at is None or not outbox.configured:
        return
    row = await tx.fetchone(
        """
        SELECT count(*) AS told, now() AS at FROM mails
        WHERE user_id = $1 AND kind = 'sign_in' AND created_at > now() - interval '1 hour'
        """,
        person.id,
    )
    if row["told"] >= MAILS_AN_HOUR:
        return
    at: datetime = row["at"]
    subject, text = mail_texts.sign_in(
        await read_settings(tx),
        person.name,
        at,
        address,
        user_agent or "not said",
        new,
        f"{outbox.base_url}/#/forgot-password",
    )
    refusal = await write_notice(tx, outbox, person, kind=MailKind.SIGN_IN, subject=subject, text=text)
    if refusal is not None:
        log.warning("sign_in.mail_not_written", user_id=str(person.id), error=refusal.message)
