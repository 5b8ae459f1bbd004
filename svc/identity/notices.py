"""Mails that notify people of changes to their accounts: of sign-ins from a browser or an address that is new, of every
change of the second factor, and of a recovery code that was used. A mail that cannot be written never prevents the
change.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog

from svc.identity import mail_texts
from svc.identity.person_records import Person
from svc.identity.settings import read_settings
from svc.identity.throttle import Recognition
from svc_actors.mail import MailKind, NewMail, Outbox
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError

_LASTS: Final = timedelta(days=1)

FACTOR_SET_UP: Final = (
    "From now on, signing in to your account takes a code of your authenticator as well as the password."
)
FACTOR_DISABLED: Final = "The second factor of your account was disabled: from now on the password alone signs in."
FACTOR_DISABLED_BY_ADMINISTRATOR: Final = (
    "An administrator has disabled the second factor of your account: from now on the password alone signs in."
)
CODES_RENEWED: Final = "Your account has new recovery codes. The previous ones no longer work."

log = structlog.get_logger(__name__)

MAILS_AN_HOUR: Final = 5
"""A limit, so that somebody who knows the password cannot fill the person's mailbox with notices."""


async def tell_of_sign_in(
    tx: Transaction, outbox: Outbox, person: Person, recognised: Recognition, address: str, user_agent: str | None
) -> None:
    """Queue the mail about a sign-in if its browser or its address is new. `person` is the record from before the
    sign-in. If the queue is full, that is only logged: it never prevents the sign-in."""
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


def code_used(left: int) -> str:
    return f"A recovery code signed in to your account. {left or 'None'} of them {'is' if left == 1 else 'are'} left."


async def tell_of_second_factor(
    tx: Transaction, outbox: Outbox, person: Person, what: str, address: str | None
) -> None:
    """Queue the mail about a change of the second factor, in the transaction of the change. If the queue is full, that
    is only logged: it never prevents the change."""
    if not outbox.configured:
        return
    at: datetime = await tx.fetchval("SELECT now()")
    subject, text = mail_texts.second_factor(
        await read_settings(tx), person.name, what, at, address, f"{outbox.base_url}/#/forgot-password"
    )
    refusal = await write_notice(tx, outbox, person, kind=MailKind.SECOND_FACTOR, subject=subject, text=text)
    if refusal is not None:
        log.warning("second_factor.mail_not_written", user_id=str(person.id), error=refusal.message)


async def write_notice(
    tx: Transaction, outbox: Outbox, person: Person, *, kind: MailKind, subject: str, text: str
) -> ServiceError | None:
    """Queue the mail in the transaction of the change. If it cannot be queued (the queue is full, or the address is
    invalid), the error is returned for the caller to log."""
    mail = NewMail(kind=kind, recipient=person.email, subject=subject, text=text, lasts=_LASTS, user_id=person.id)
    try:
        await outbox.write(tx, mail)
    except ServiceError as error:
        # Both errors are raised before the queue is written, so the transaction can continue.
        if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.INVALID):
            raise
        return error
    return None
