"""When the times of a schedule come: read from five fields, in any time zone, through changes of the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_actors.panel.schedules.cron import BadCronError, Cron, next_time, zone_of

GREENWICH, BERLIN = ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu"]
CHANGES = [datetime(2026, 3, 29, 1), datetime(2026, 10, 25, 1), datetime(2026, 3, 8, 7), datetime(2026, 11, 1, 5)]
CHANGES += [datetime(2026, 4, 4, 15), datetime(2026, 10, 3, 15), datetime(2026, 3, 8, 5), datetime(2026, 7, 1, 12)]
"""Moments, in UTC, at which clocks of these zones are changed, and one at which none is."""


def times(text: str, after: datetime, number: int, zone: ZoneInfo = GREENWICH) -> list[datetime]:
    found, cron = [after], Cron.parse(text)
    for _ in range(number):
        following = next_time(cron, zone, found[-1])
        assert following is not None
        found.append(following)
    return found[1:]


def test_fields_lists_ranges_steps_and_names() -> None:
    friday = datetime(2026, 11, 20, 17, 50, tzinfo=UTC)

    weekdays = times("*/15 8-18/5,22 * nov mon-fri", friday, 5)

    assert [f"{at:%a %H:%M}" for at in weekdays] == ["Fri 18:00", "Fri 18:15", "Fri 18:30", "Fri 18:45", "Fri 22:00"]
    assert times("0 0 29 2 *", friday, 1) == [datetime(2028, 2, 29, tzinfo=UTC)]
    assert f"{times('0 9 * * 7', friday, 1)[0]:%a %d}" == "Sun 22"


def test_of_two_restricted_days_either_counts() -> None:
    found = times("0 0 13 * fri", datetime(2026, 2, 1, tzinfo=UTC), 4)

    assert [at.day for at in found] == [6, 13, 20, 27]
    assert [at.day for at in times("0 0 13 * fri", datetime(2026, 4, 10, tzinfo=UTC), 2)] == [13, 17]


def test_a_time_that_the_clock_leaves_out_comes_all_the_same() -> None:
    [first, second] = times("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=UTC), 2, BERLIN)

    assert f"{first.astimezone(BERLIN):%d %H:%M}" == "29 03:30"
    assert f"{second.astimezone(BERLIN):%d %H:%M}" == "30 02:30"


def test_a_time_that_comes_twice_counts_once_unless_every_hour_counts() -> None:
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)

    once = times("30 2 * * *", before, 2, BERLIN)
    hourly = times("30 * * * *", datetime(2026, 10, 24, 23, 45, tzinfo=UTC), 3, BERLIN)

    assert [f"{at.astimezone(BERLIN):%d %H:%M}" for at in once] == ["25 02:30", "26 02:30"]
    assert [f"{at:%H:%M}" for at in hourly] == ["00:30", "01:30", "02:30"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *"),
        *("* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "* * * foo *", "@reboot", "0 0 31 apr *"),
        *("* * * * * rm -rf /", "$(id) * * * *", "-1 * * * *", "1,,2 * * * *", "٣ * * * *", "*/100 * * * *"),
    ],
)
def test_what_says_no_times_is_refused(text: str) -> None:
    with pytest.raises(BadCronError):
        Cron.parse(text)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "/etc/localtime", "Europe/Atlantis", "posix/UTC", "utc\0"])
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(BadCronError):
        zone_of(name)


@given(st.text(alphabet="0123456789*/,- \tabcjnmot$;|`", max_size=40))
def test_whatever_is_given_is_read_or_refused(text: str) -> None:
    try:
        cron = Cron.parse(text)
    except BadCronError:
        return

    assert cron.minutes
    assert cron.hours


def fields() -> st.SearchStrategy[str]:
    minute = st.one_of(st.just("*"), st.sampled_from(["*/7", "*/20", "0", "30", "59", "15-45/10"]))
    hour = st.one_of(st.just("*"), st.sampled_from(["0", "1", "2", "3", "*/2", "0-3", "23"]))
    week = st.sampled_from(["*", "sun", "1-5"])
    return st.tuples(minute, hour, st.sampled_from(["*", "1,8,25,29", "*/2"]), week).map(
        lambda each: f"{each[0]} {each[1]} {each[2]} * {each[3]}"
    )


def comes_at(cron: Cron, zone: ZoneInfo, moment: datetime) -> bool:
    """The rule, stated the other way round: by what the clock shows at a moment, or would show unchanged."""
    shown = moment.astimezone(zone)
    wall = shown.replace(tzinfo=None, fold=0)
    if fits(cron, wall) and (not shown.fold or cron.every_hour):
        return True
    unchanged = moment.replace(tzinfo=None) + (offset(zone, moment - timedelta(hours=3)))
    left_out = unchanged.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != unchanged
    return left_out and fits(cron, unchanged)


def fits(cron: Cron, wall: datetime) -> bool:
    return cron.is_day(wall.date()) and wall.hour in cron.hours and wall.minute in cron.minutes


def offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    found = moment.astimezone(zone).utcoffset()
    assert found is not None
    return found


@settings(max_examples=60, deadline=None)
@given(fields(), st.sampled_from(ZONES), st.sampled_from(CHANGES), st.integers(-300, 300))
def test_no_time_is_left_out_and_none_invented(text: str, name: str, change: datetime, minutes: int) -> None:
    cron, zone = Cron.parse(text), ZoneInfo(name)
    after = change.replace(tzinfo=UTC) + timedelta(minutes=minutes)

    found = next_time(cron, zone, after)

    assert found is not None
    candidates = (after + timedelta(minutes=n) for n in range(1, 10 * 60))
    first = next((moment for moment in candidates if comes_at(cron, zone, moment)), None)
    assert found == first if first is not None else found >= after + timedelta(hours=10)
