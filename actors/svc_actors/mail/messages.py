"""Composes a mail for the wire: RFC 5322, plain text, seven bits.

Invariant: text from people or machines cannot add a header: subjects are reduced to one line, and the standard
library's policy refuses a header with a line break.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP

from svc_common.errors import invalid

_POLICY = SMTP.clone(cte_type="7bit")
"""Seven bits, so that no relay has to convert the message."""
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_LONGEST_SUBJECT = 150


def one_line(text: str, longest: int = _LONGEST_SUBJECT) -> str:
    """`text` without line breaks and control characters, at most `longest` characters."""
    line = _UNFIT.sub(" ", text).strip()
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def addressee(text: str) -> Address:
    """The recipient of a mail. Raises `invalid` for text that is not an address."""
    try:
        address = Address(addr_spec=text)
    except (MessageError, ValueError, IndexError):
        address = Address()
    if not address.username or not address.domain:
        raise invalid(f"No mail can be sent to {text!r}: it is not an email address.")
    return address


def compose(sender: Address, recipient: Address, subject: str, text: str, message_id: str) -> bytes:
    """The whole message."""
    message = EmailMessage(policy=_POLICY)
    message["From"] = sender
    message["To"] = recipient
    message["Subject"] = one_line(subject)
    message["Date"] = datetime.now(UTC)
    message["Message-ID"] = message_id
    # Suppresses vacation notices (RFC 3834).
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message.as_bytes()
