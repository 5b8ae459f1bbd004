"""What a site hands to sendmail becomes a message that is fit for SMTP, whatever it is."""

from __future__ import annotations

import re
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formataddr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_webhost.mail.message import MOST_RECIPIENTS, Draft, MessageError, addresses

FIT = re.compile(rb"(?:[^\r\n\0]*\r\n)*")
LOCAL = st.from_regex(r"\A[a-z0-9]+(?:[.+_-][a-z0-9]+)*\Z").filter(lambda text: len(text) <= 64)
DOMAIN = st.from_regex(r"\A[a-z0-9]{1,20}\.[a-z]{2,10}\Z")
ADDRESS = st.builds("{}@{}".format, LOCAL, DOMAIN)
NAME = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=30)
PIECES = st.lists(
    st.sampled_from(
        [b"To: a@b.example", b"Bcc: c@d.example", b"From: x@y.example", b"Subject: s", b" fold", b"\t", b"", b"\r",
         b"\n", b"\r\n", b"\r\r\n", b"\0", b".", b"..", b"text", b"From nobody", b":", b"X:", b"\xff\xfe"]
    ),
    max_size=20,
).map(b"".join)  # fmt: skip


@given(st.one_of(st.binary(max_size=300), PIECES))
def test_any_bytes_become_whole_lines_with_the_headers_that_must_be_there(raw: bytes) -> None:
    finished = Draft.parse(raw).finished("shop.example", None, None)

    head, _, body = finished.content.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n") if line[:1] not in (b" ", b"\t")]
    assert FIT.fullmatch(finished.content)
    assert FIT.fullmatch(body)
    assert all(names.count(name) == 1 or name in raw.lower() for name in (b"from", b"date", b"message-id"))
    assert not {b"bcc", b"return-path"} & set(names)
    assert all(re.fullmatch(rb"[!-9;-~]+[ \t]*", name) for name in names)


@given(st.lists(st.tuples(NAME, ADDRESS), min_size=1, max_size=5), st.binary(max_size=200))
def test_a_finished_message_is_finished(named: list[tuple[str, str]], body: bytes) -> None:
    """The second time nothing changes, so nothing depends on who wrote it."""
    raw = f"To: {', '.join(formataddr(one) for one in named)}\n\n".encode() + body

    once = Draft.parse(raw).finished("shop.example", None, None).content

    assert Draft.parse(once).finished("other.example", None, None).content == once


@given(st.lists(st.tuples(NAME, ADDRESS), min_size=1, max_size=5))
def test_the_addresses_of_a_list_are_found_whatever_the_names_are(named: list[tuple[str, str]]) -> None:
    text = ", ".join(formataddr(one) for one in named)

    assert addresses(text) == [one for _, one in named]


@given(st.text(max_size=100))
def test_what_is_taken_for_an_address_is_one(text: str) -> None:
    try:
        found = addresses(text)
    except MessageError:
        return
    assert all(re.fullmatch(r"[!-~]+@[A-Za-z0-9.-]+", one) and not set(one) & set('<>()[],;:"\\') for one in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bob@example.net", ["bob@example.net"]),
        ('"Doe, Bob" <bob@example.net>, eve@example.net', ["bob@example.net", "eve@example.net"]),
        ("Bob (the <first>, not the last) <bob@example.net>", ["bob@example.net"]),
        ("friends: bob@example.net, eve@example.net;", ["bob@example.net", "eve@example.net"]),
        ("undisclosed-recipients:;", []),
        ("bob@bücher.example", ["bob@xn--bcher-kva.example"]),
        ("", []),
    ],
)
def test_lists_of_addresses(text: str, found: list[str]) -> None:
    assert addresses(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "bob", "root@localhost", "bob@example.net@example.org", "<bob@example.net", "bob@example.net (",
        "b ob@a.example", "bob@example.net> <eve@example.net>", "bob@-example.net", "bob@example..net",
        f"{'b' * 65}@example.net",
        "jürgen@example.net", "<>", "bob@[192.0.2.1]", '"bob"@example.net', "a@b.example c@d.example",
    ],
)  # fmt: skip
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(MessageError):
        addresses(text)


def test_a_line_break_within_a_line_of_the_site_adds_no_header() -> None:
    """A form that filters LF alone hands in what a visitor wrote."""
    raw = b"To: bob@example.net\nSubject: hello\rBcc: victim@example.org\n\nhi\n"
    draft = Draft.parse(raw)

    finished = draft.finished("shop.example", None, None)

    assert draft.recipients() == ["bob@example.net"]
    assert b"Subject: hello Bcc: victim@example.org\r\n" in finished.content


def test_a_message_of_a_library_keeps_its_headers_and_body() -> None:
    message = EmailMessage(policy=SMTP)
    message["From"], message["To"], message["Subject"] = "Jürgen <j@shop.example>", "b@example.net", "Grüße " * 30
    message["Date"], message["Message-ID"] = "Mon, 30 Nov 2026 09:00:00 +0000", "<1@shop.example>"
    message.set_content("Text\n.\n..\n")
    message.add_attachment(b"\0\1", maintype="application", subtype="octet-stream")

    finished = Draft.parse(message.as_bytes()).finished("shop.example", None, None)

    assert finished.content == message.as_bytes()
    assert finished.from_domain == "shop.example"


def test_from_is_the_sender_with_the_given_name_where_there_is_none() -> None:
    finished = Draft.parse(b"To: a@b.example\n\nx").finished("shop.example", "me@shop.example", 'A "B"\r\nBcc: c')

    assert finished.content.startswith(b'From: "A  B   Bcc: c" <me@shop.example>\r\n')


def test_an_account_in_from_becomes_an_address() -> None:
    finished = Draft.parse(b"From: root (Cron Daemon)\nTo: a@b.example\n\nx").finished("shop.example", None, None)

    assert finished.content.count(b"From: ") == 1
    assert b"From: noreply@shop.example\r\n" in finished.content


def test_too_many_recipients_are_refused() -> None:
    everyone = ", ".join(f"u{number}@example.net" for number in range(MOST_RECIPIENTS + 1))

    with pytest.raises(MessageError, match="recipients"):
        Draft.parse(f"To: {everyone}\n\nx".encode()).recipients()


def test_enormous_headers_take_no_time_of_anybody_else() -> None:
    raw = b"Subject: x\n" + b" y\n" * 200_000 + b"X: 1\n" * 200_000 + b'To: "' + b'"' * 200_000 + b"\n\nx"

    draft = Draft.parse(raw)

    with pytest.raises(MessageError):
        draft.recipients()
