"""A mail about every change of a person's second factor, and about a recovery code that was used."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog

from svc.identity import mail_texts
from svc.identity.notices import write_notice
from svc.identity.person_records import Person
from svc.identity.settings import read_settings
from svc_actors.mail import MailKind, Outbox
from svc_actors.store import Transaction

SET_UP: Final = "From now on, signing in to your account takes a code of your authenticator as well as the password."
DISABLED: Final = "The second factor of your account was disabled: from now on the password alone signs in."
DISABLED_BY_ADMINISTRATOR: Final = (
    "An administrator has disabled the second factor of your account: from now on the password alone signs in."
)
RENEWED: Final = "Your account has new recovery codes. The previous ones no longer work."

log = structlog.get_logger(__name__)


def code_used(left: int) -> str:
    return f"A recovery code signed in to your account. {left or 'None'} of them {'is' if left == 1 else 'are'} left."


async def tell(tx: Transaction, outbox: Outbox, person: Person, what: str, address: str | None) -> None:
    """Write the mail in the transaction of the change. A full queue is logged and never prevents the change."""
    if not outbox.configured:
        return
    at: datetime = await tx.fetchval("SELECT now()")
    subject, text = mail_texts.second_factor(
        await read_settings(tx), person.name, what, at, address, f"{outbox.base_url}/#/forgot-password"
    )
    refusal = await write_notice(tx, outbox, person, kind=MailKind.SECOND_FACTOR, subject=subject, text=text)
    if refusal is not None:
        log.warning("second_factor.mail_not_written", user_id=str(person.id), error=refusal.message)
