"""What nobody can do with a mail: add a header to it, or have it go to somebody else."""

from __future__ import annotations

from email import message_from_bytes, policy

import pytest

from svc_actors.mail.messages import addressee, compose
from svc_common.errors import ServiceError
from tests.mail.conftest import Queue
from tests.support.smtp import MailServer


@pytest.mark.parametrize(
    "subject",
    ["x\r\nBcc: eve@example.net", "x\nBcc: eve@example.net", "x\rBcc: eve@example.net", "x\u2028Bcc: a\x00\x0b\x85b"],
)
async def test_a_subject_adds_no_header(queue: Queue, relay: MailServer, subject: str) -> None:
    async with queue.delivering():
        await queue.write(subject)

        mail = await relay.next()

    assert mail.message["Bcc"] is None
    assert mail.message["Subject"].startswith("x Bcc: ")
    assert mail.recipients == ["ada@example.net"]


@pytest.mark.parametrize(
    "recipient",
    [
        "ada@example.net\r\nRCPT TO:<eve@example.net>",
        "ada@example.net\nBcc: eve@example.net",
        "ada@example.net, eve@example.net",
        "ada@example.net>\r\nDATA",
        "ada",
        "@example.net",
        "",
    ],
)
async def test_what_is_no_address_is_refused_before_it_is_queued(queue: Queue, recipient: str) -> None:
    with pytest.raises(ServiceError, match="not an email address"):
        await queue.write(recipient=recipient)

    assert await queue.database.fetchval("SELECT count(*) FROM mails") == 0


async def test_a_text_ends_where_it_ends(queue: Queue, relay: MailServer) -> None:
    text = "one\n.\nRCPT TO:<eve@example.net>\n..two\n" + "long " * 400 + "\n"
    async with queue.delivering():
        await queue.write(text=text)

        mail = await relay.next()

    assert mail.text.replace("\r\n", "\n") == text
    assert mail.recipients == ["ada@example.net"]


def test_a_long_subject_of_many_signs_is_shortened_and_folded() -> None:
    sender = addressee("svc@example.org")

    raw = compose(sender, addressee("ada@example.net"), "ä" * 1000, "text\n", "<1@example.org>")

    subject = message_from_bytes(raw, policy=policy.default)["Subject"]
    assert subject == "ä" * 149 + "…"
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
