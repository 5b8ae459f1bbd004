"""Codes of an authenticator: RFC 6238 with SHA-1, six digits and steps of 30 seconds, which every authenticator
supports.

Why: docs/decisions/0009-sign-in-throttle-and-second-factors.md.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from typing import Final
from urllib.parse import quote

import segno

STEP_SECONDS: Final = 30
DIGITS: Final = 6
_WINDOW: Final = 1
"""Steps before and after the current one whose codes are accepted, for clock drift and slow typing."""
_SECRET_BYTES: Final = 20
"""What RFC 4226, section 4, recommends."""


def new_secret() -> bytes:
    return secrets.token_bytes(_SECRET_BYTES)


def code_at(secret: bytes, step: int) -> str:
    """The code of a step (RFC 4226, section 5.3)."""
    digest = hmac.digest(secret, step.to_bytes(8), "sha1")
    offset = digest[-1] & 0xF
    number = int.from_bytes(digest[offset : offset + 4]) & 0x7FFF_FFFF
    return str(number % 10**DIGITS).zfill(DIGITS)


def step_of(secret: bytes, code: str, now: float, *, after: int) -> int | None:
    """The time step whose code is `code`: later than `after`, and near `now` (Unix seconds). None if there is none.
    Checking takes the same time for every code."""
    current = int(now // STEP_SECONDS)
    found = None
    for step in range(current - _WINDOW, current + _WINDOW + 1):
        if hmac.compare_digest(code_at(secret, step).encode(), code.encode()) and step > after:
            found = step
    return found


def in_letters(secret: bytes) -> str:
    """The secret in base32, the form in which it is typed into an authenticator."""
    return base64.b32encode(secret).decode()


def otpauth_url(secret: bytes, issuer: str, account: str) -> str:
    """The URL that an authenticator reads from a QR code (github.com/google/google-authenticator, Key Uri Format)."""
    issuer = quote(issuer.replace(":", " "), safe="")
    label = f"{issuer}:{quote(account, safe='@')}"
    return (
        f"otpauth://totp/{label}?secret={in_letters(secret)}&issuer={issuer}"
        f"&algorithm=SHA1&digits={DIGITS}&period={STEP_SECONDS}"
    )


def qr_code(url: str) -> str:
    """The URL as a QR code for a phone to scan: an SVG image in a data URI."""
    picture: str = segno.make_qr(url).svg_data_uri(scale=4, light="#fff")
    return picture
