"""Codes of an authenticator, by the vectors of the RFCs."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from svc.identity import totp

SECRET = b"12345678901234567890"


@pytest.mark.parametrize(
    ("at", "eight_digits"),
    [
        (59, "94287082"),
        (1_111_111_109, "07081804"),
        (1_111_111_111, "14050471"),
        (1_234_567_890, "89005924"),
        (2_000_000_000, "69279037"),
        (20_000_000_000, "65353130"),
    ],
)
def test_codes_are_those_of_rfc_6238(at: int, eight_digits: str) -> None:
    """Appendix B has eight digits; six of the same number are its last six."""
    assert totp.code_at(SECRET, at // 30) == eight_digits[-6:]


def test_codes_are_those_of_rfc_4226() -> None:
    codes = [totp.code_at(SECRET, counter) for counter in range(10)]

    assert codes == ["755224", "287082", "359152", "969429", "338314", "254676", "287922", "162583", "399871", "520489"]


@pytest.mark.parametrize(("off", "taken"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_a_code_of_the_step_before_or_after_is_taken_and_no_other(off: int, taken: bool) -> None:
    now = 1_234_567_890
    code = totp.code_at(SECRET, now // 30 + off)

    step = totp.step_of(SECRET, code, now, after=0)

    assert (step is not None) is taken
    assert step in (None, now // 30 + off)


def test_a_step_that_was_used_is_not_taken_again_nor_one_before() -> None:
    now = 1_234_567_890
    step = now // 30

    assert totp.step_of(SECRET, totp.code_at(SECRET, step), now, after=step) is None
    assert totp.step_of(SECRET, totp.code_at(SECRET, step - 1), now, after=step) is None
    assert totp.step_of(SECRET, totp.code_at(SECRET, step + 1), now, after=step) == step + 1


@pytest.mark.parametrize("code", ["", "28708", "0287082", "２８７０８２", "abcdef"])
def test_what_is_no_code_is_none(code: str) -> None:
    assert totp.step_of(SECRET, code, 59, after=0) is None


def test_the_url_says_all_that_an_authenticator_needs() -> None:
    url = urlsplit(totp.otpauth_url(SECRET, "Example: Hosting & more", "ada@example.org"))

    query = {name: value for name, [value] in parse_qs(url.query).items()}
    assert (url.scheme, url.netloc) == ("otpauth", "totp")
    assert unquote(url.path) == "/Example  Hosting & more:ada@example.org"
    assert query == {
        "secret": "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ",
        "issuer": "Example  Hosting & more",
        "algorithm": "SHA1",
        "digits": "6",
        "period": "30",
    }


def test_secrets_are_of_160_bits_and_never_the_same() -> None:
    secrets = {totp.new_secret() for _ in range(100)}

    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {20}


def test_the_qr_code_is_a_picture_that_a_page_shows_and_holds_no_text_of_the_secret() -> None:
    url = totp.otpauth_url(SECRET, "Example", "ada@example.org")

    picture = totp.qr_code(url)

    assert picture.startswith("data:image/svg+xml")
    assert "svg" in picture
    assert totp.in_letters(SECRET) not in picture
    assert picture != totp.qr_code(url + "x")
