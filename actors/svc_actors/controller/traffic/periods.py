"""Periods of traffic: calendar months of UTC, written YYYY-MM, so that their order as text is their order in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import NewType

Period = NewType("Period", str)

Clock = Callable[[], datetime]
"""Returns the wall-clock time as an aware datetime. Only the controller's clock decides which month it is."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def period_of(moment: datetime) -> Period:
    """The month of an aware datetime."""
    return Period(f"{moment.astimezone(UTC):%Y-%m}")


def shifted(period: Period, months: int) -> Period:
    """The month `months` later, or earlier if negative."""
    year, month = divmod(int(period[:4]) * 12 + int(period[5:]) - 1 + months, 12)
    return Period(f"{year:04d}-{month + 1:02d}")


def next_period(period: Period) -> Period:
    return shifted(period, 1)


def start_of(period: Period) -> datetime:
    """The first moment of the month."""
    return datetime(int(period[:4]), int(period[5:]), 1, tzinfo=UTC)


def until(first: Period, last: Period) -> list[Period]:
    """Every month from `first` to `last`, newest first."""
    found: list[Period] = []
    while last >= first:
        found.append(last)
        last = shifted(last, -1)
    return found
