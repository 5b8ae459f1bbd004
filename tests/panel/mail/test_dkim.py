"""Signatures of sites' mail, verified by dkimpy: whatever a program hands in, receivers find it unaltered."""

from __future__ import annotations

from base64 import b64encode
from functools import cache

import dkim
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from svc_actors.panel.mail.signing import SigningData, signature
from svc_webhost.mail.dkim import LONGEST_HEADERS, signing_data

ZONE, SELECTOR = "example.com", "svc20260101"
HEAD = b"From: Ada <ada@example.com>\r\nTo: bob@example.net\r\nSubject: Hello\r\nMessage-ID: <1@example.com>\r\n"


@cache
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def record(name: bytes, timeout: int = 5) -> bytes | None:
    """The DNS, as the verifier asks it."""
    if name != f"{SELECTOR}._domainkey.{ZONE}.".encode():
        return None
    der = key().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return b"v=DKIM1; k=rsa; p=" + b64encode(der)


def field_of(message: bytes) -> bytes:
    """The signature, which the core makes of what the tenant's process has sent it as JSON."""
    data = signing_data(message)
    assert data is not None, "it can be signed"
    sent = SigningData.model_validate(data.as_json())
    return signature(sent, ZONE, SELECTOR, key(), 1_700_000_000).encode()


def verified(message: bytes) -> bool:
    return bool(dkim.verify(message, dnsfunc=record))


def with_crlf(message: bytes) -> bytes:
    """As a relay sends it on, which knows whole lines with CRLF only."""
    lines = message.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    return lines if lines.endswith(b"\r\n") else lines + b"\r\n"


words = st.text(st.sampled_from("abcü€ \t.,;:=<>@\"'-"), min_size=0, max_size=40).map(lambda text: text.encode())
folds = st.lists(words.map(lambda text: b"x" + text), min_size=1, max_size=4).map(
    lambda parts: b"\r\n\t ".join(parts) + b"\r\n"
)
names = st.sampled_from([b"Subject", b"TO", b"cc", b"Reply-To", b"X-Mailer", b"List-Unsubscribe", b"References"])
headers = st.lists(st.tuples(names, st.sampled_from([b":", b": ", b":\t "]), folds).map(b"".join), max_size=8)
bodies = st.lists(
    st.sampled_from(
        [b"", b" ", b"\t", b"a", b"a b  c", b"trailing \t", b".", b"..", b"From x", "grüße".encode(), b"\xff\r"]
    ),
    max_size=12,
).flatmap(
    lambda lines: st.tuples(
        st.just(lines), st.sampled_from([b"\r\n", b"\n"]), st.sampled_from([b"", b"\r\n", b"\r\n\r\n \r\n", b"\n"])
    ).map(lambda made: made[1].join(made[0]) + made[2])
)


@settings(max_examples=300, deadline=None)
@given(headers, bodies)
def test_odd_headers_and_bodies_are_verified(fields: list[bytes], body: bytes) -> None:
    message = b"".join(fields) + HEAD + b"\r\n" + body

    assert verified(with_crlf(field_of(message) + message))


@pytest.mark.parametrize(
    "body",
    [b"", b"\r\n", b"\r\n\r\n\r\n", b"text", b"text\r\n\r\n", b"bare\nline\n", b" \t \r\n", "größer\r\n".encode()],
)
def test_bodies_are_verified_whatever_a_relay_does_to_their_end(body: bytes) -> None:
    message = HEAD + b"\r\n" + body
    relayed = with_crlf(field_of(message) + message)

    assert verified(relayed)
    assert verified(relayed + b"\r\n\r\n")


def test_a_message_without_a_body_is_verified() -> None:
    assert verified(field_of(HEAD) + HEAD + b"\r\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Hello", b"Hellp"),
        (b"bob@", b"eve@"),
        (b"pay 10", b"pay 90"),
        (b"From: Ada", b"From: Boss <boss@bank.example>\r\nFrom: Ada"),
        (b"From: Ada <ada@example.com>\r\n", b"From: Ada <ada@example.com>\r\nFrom: Boss <boss@bank.example>\r\n"),
    ],
)
def test_what_was_altered_on_the_way_is_noticed(old: bytes, new: bytes) -> None:
    message = HEAD + b"\r\npay 10\r\n"
    signed = field_of(message) + message

    assert verified(signed)
    assert not verified(signed.replace(old, new))


def test_lines_of_the_signature_are_short_enough_for_smtp() -> None:
    many = b"".join(b"References: <%d@example.com>\r\n" % number for number in range(50))
    message = many + HEAD + b"\r\ntext\r\n"

    field = field_of(message)

    assert max(len(line) for line in field.split(b"\r\n")) <= 78
    assert verified(field + message)


@pytest.mark.parametrize(
    "message",
    [
        b"To: bob@example.net\r\n\r\ntext",
        b"From: a@example.com\r\nFrom: b@example.com\r\n\r\ntext",
        b"From: a@example.com\r\nno field\r\n\r\ntext",
        b" folded: first\r\nFrom: a@example.com\r\n\r\ntext",
        b"\r\nFrom: a@example.com\r\n\r\ntext",
        b"From: a@example.com\r\nTo: " + b"x" * LONGEST_HEADERS + b"\r\n\r\ntext",
        b"",
    ],
)
def test_what_cannot_be_signed_has_no_signing_data(message: bytes) -> None:
    assert signing_data(message) is None


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_of_a_tenant_raise_an_error(message: bytes) -> None:
    data = signing_data(message)

    assert data is None or SigningData.model_validate(data.as_json())


@pytest.mark.parametrize(
    "change",
    [
        {"names": "from:to;d=bank.example"},
        {"names": "from\r\nX: y"},
        {"names": ""},
        {"names": ":".join(["to"] * 200)},
        {"body_hash": "AAAA"},
        {"body_hash": "A" * 43 + "=\r\nX: y"},
        {"headers": "not base64!"},
        {"headers": "A" * (2 * LONGEST_HEADERS)},
        {"more": "x"},
    ],
)
def test_signing_data_that_could_alter_the_header_is_refused(change: dict[str, str]) -> None:
    data = signing_data(HEAD + b"\r\n")
    assert data is not None

    with pytest.raises(ValidationError):
        SigningData.model_validate(data.as_json() | change)
