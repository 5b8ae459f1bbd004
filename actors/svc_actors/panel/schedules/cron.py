"""Parses and checks the five time fields of cron(5), and computes the next time. Pure functions.

    minute  hour  day of the month  month  day of the week
    */15    8-18  *                 *      mon-fri

A field is `*` or a list of numbers, ranges (`8-18`) and steps (`*/15`, `8-18/2`); months and days of the week have
names of three letters, and Sunday is 0 and 7. If both day fields are restricted, a day that fits either of them counts,
as in cron(5). An expression has no command: the task itself is defined elsewhere.

Times are those of a time zone. A time that a change of the clock skips (02:30 when 02:00 becomes 03:00) counts as if
the clock had not been changed yet; a time that comes twice counts once, unless the expression matches every hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

LONGEST: Final = 100
"""The most characters of an expression."""
_MOST_DAYS: Final = 8 * 366 + 1
"""The most days until the next match: two 29ths of February can be eight years apart, since 2100 is not a leap year."""
_LONGEST_CHANGE: Final = timedelta(hours=3)
"""The largest change of a clock that is expected; no zone has had a larger one since 2012."""


class BadCronError(ValueError):
    """An invalid expression; the message names the wrong part."""


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    names: Mapping[str, int] = {}


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)
_PART: Final = re.compile(r"(?:(?P<all>\*)|(?P<low>\w{1,3})(?:-(?P<high>\w{1,3}))?)(?:/(?P<step>\d{1,2}))?", re.ASCII)


@dataclass(frozen=True)
class Cron:
    minutes: Sequence[int]
    hours: Sequence[int]
    days: frozenset[int]
    """Days of the month."""
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """True if both day fields are restricted: then a match of one of them is enough."""

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Raises `BadCronError`."""
        words = text.lower().split()
        if len(text) > LONGEST or len(words) != len(_FIELDS):
            raise BadCronError("five fields are needed: minute, hour, day of the month, month, day of the week")
        minutes, hours, days, months, weekdays = map(_values, _FIELDS, words)
        cron = cls(
            minutes=sorted(minutes),
            hours=sorted(hours),
            days=days,
            months=months,
            weekdays=frozenset(day % 7 for day in weekdays),
            either_day=not words[2].startswith("*") and not words[4].startswith("*"),
        )
        if not cron.either_day and not any(day <= _DAYS_OF[month] for month in months for day in days):
            raise BadCronError("there is no such day in these months")
        return cron

    def is_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (in_month or in_week) if self.either_day else (in_month and in_week)

    @property
    def every_hour(self) -> bool:
        return len(self.hours) == 24

    def times_from(self, start: datetime) -> Iterator[datetime]:
        """Times on the matching days from `start` on, in order, as a wall clock shows them, without a zone."""
        for offset in range(_MOST_DAYS):
            day = start.date() + timedelta(offset)
            if not self.is_day(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    if (found := datetime.combine(day, time(hour, minute))) >= start:
                        yield found


_DAYS_OF: Final = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def next_time(cron: Cron, zone: ZoneInfo, after: datetime) -> datetime | None:
    """The first matching time after `after`, which has a zone, in UTC; None if there is none for eight years."""
    found: datetime | None = None
    start = after.astimezone(zone).replace(tzinfo=None) - _LONGEST_CHANGE
    latest: datetime | None = None
    for wall in cron.times_from(start):
        # Wall times come in order, and so do the moments for which they stand, except around a change of the clock. So
        # the search goes on for the length of such a change after the first match.
        if latest is not None and wall > latest:
            break
        for moment in _moments(wall, zone, twice=cron.every_hour):
            if moment > after and (found is None or moment < found):
                found = moment
                latest = latest or wall + _LONGEST_CHANGE
    return found


def _moments(wall: datetime, zone: ZoneInfo, *, twice: bool) -> Iterator[datetime]:
    first = wall.replace(tzinfo=zone).astimezone(UTC)
    yield first
    if twice:
        second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
        # If the wall time was skipped, `fold=1` gives a moment before the first one; it does not count.
        if second > first:
            yield second


def _values(field: _Field, word: str) -> frozenset[int]:
    return frozenset(value for part in word.split(",") for value in _part(field, part))


def _part(field: _Field, part: str) -> range:
    found = _PART.fullmatch(part)
    if found is None:
        raise BadCronError(f"{field.name}: {part!r} is not a number, range or step")
    step = int(found["step"]) if found["step"] else 1
    if step == 0:
        raise BadCronError(f"{field.name}: a step is 1 or more")
    if found["all"]:
        # The field ends at 7, which is Sunday again: a step must not count Sunday twice.
        return range(field.first, (6 if field.last == 7 else field.last) + 1, step)
    low = _number(field, found["low"])
    # A step after a single number: the range starts there and goes to the end.
    high = _number(field, found["high"]) if found["high"] else field.last if found["step"] else low
    if high < low:
        raise BadCronError(f"{field.name}: {part!r} ends before it starts")
    return range(low, high + 1, step)


def _number(field: _Field, word: str) -> int:
    value = field.names.get(word)
    if value is None and word.isdecimal():
        value = int(word)
    if value is None or not field.first <= value <= field.last:
        raise BadCronError(f"{field.name}: {word!r} is not from {field.first} to {field.last}")
    return value


@cache
def zone_names() -> frozenset[str]:
    """The time zones that this server knows."""
    return frozenset(name for name in available_timezones() if not name.startswith(("posix/", "right/")))


def zone_of(name: str) -> ZoneInfo:
    """Raises `BadCronError`. Only listed names are looked up: others would be paths of files."""
    if name not in zone_names():
        raise BadCronError(f"{name!r} is not a time zone such as UTC or Europe/Berlin")
    return ZoneInfo(name)
