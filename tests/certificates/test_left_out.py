"""When a certificate goes without a name, and for how long its certificate is kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from svc_actors.certificates.left_out import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LONGEST_RETRY_AFTER,
    CurrentCertificate,
    Refusal,
    all_names,
    ordered,
    read,
    refused,
    stored,
    waits,
)

NOW = datetime(2026, 11, 29, tzinfo=UTC)
LIFETIME = timedelta(days=90)


def test_what_is_recorded_is_read_again() -> None:
    left = refused([], [Refusal("www.example.com", "no address", ("192.0.2.1",))], NOW)

    assert read(stored(left)) == left
    assert ordered(["example.com", "www.example.com"], left) == ["example.com"]
    assert ordered(["example.com", "www.example.com"], all_names(left)) == ["example.com", "www.example.com"]


def test_the_pause_before_another_try_grows_and_ends() -> None:
    left = refused([], [Refusal("a", "b")], NOW)
    first = left[0].next_try - NOW
    for _ in range(40):
        left = refused(left, [Refusal("a", "b")], NOW)

    assert first == FIRST_PAUSE
    assert left[0].next_try - NOW == LONGEST_PAUSE


@pytest.mark.parametrize(
    ("asked", "expected"), [(60.0, FIRST_PAUSE), (7200.0, timedelta(hours=2)), (1e9, LONGEST_RETRY_AFTER)]
)
def test_no_try_is_sooner_than_the_authority_asks(asked: float, expected: timedelta) -> None:
    [left] = read(stored(refused([], [Refusal("a", "b", retry_after=asked)], NOW)))

    assert left.next_try - NOW == expected


@pytest.mark.parametrize(
    ("has", "wanted", "names", "days", "failures", "expected"),
    [
        ("a b", "a b", "a", 60, 0, True),
        ("a b", "a b", "a", 16, 9, True),
        ("a b", "a b", "a", 14, 0, False),
        # A name that the site no longer has is no reason to wait.
        ("a b", "a c", "a", 60, 0, False),
        ("a", "a b", "a", 60, 0, False),
        ("a b", "a b c", "a c", 60, 1, True),
        ("a b", "a b c", "a c", 60, 2, False),
    ],
)
def test_a_certificate_is_kept_for_a_name_that_only_it_has(
    has: str, wanted: str, names: str, days: int, failures: int, expected: bool
) -> None:
    current = CurrentCertificate(frozenset(has.split()), timedelta(days=days), LIFETIME, due=days <= 30)

    assert waits(current, wanted.split(), names.split(), failures) is expected
    assert not waits(current, wanted.split(), names.split(), 2, requested=True)
    assert not waits(None, wanted.split(), names.split(), failures)
