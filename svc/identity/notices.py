"""Mails that notify people of changes to their accounts. A mail that cannot be written never prevents the change."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from svc.identity.person_records import Person
from svc_actors.mail import MailKind, NewMail, Outbox
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError

_LASTS: Final = timedelta(days=1)


async def write_notice(
    tx: Transaction, outbox: Outbox, person: Person, *, kind: MailKind, subject: str, text: str
) -> ServiceError | None:
    """Write the mail in the transaction of the change. Returns the error if it could not be written (the queue is full,
    the address is invalid), for the caller to log."""
    mail = NewMail(kind=kind, recipient=person.email, subject=subject, text=text, lasts=_LASTS, user_id=person.id)
    try:
        await outbox.write(tx, mail)
    except ServiceError as error:
        # Both errors are raised before the queue is written, so the transaction can continue.
        if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.INVALID):
            raise
        return error
    return None
