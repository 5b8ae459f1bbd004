"""Backups that come by themselves, and how long they stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from svc_actors.panel.backups.schedules import Frequency, RetentionPolicy, expired, next_run, overdue
from tests.support.restic import RecordedRestic
from tests.support.site_backups import Backed

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)  # a Sunday
SITE = UUID(int=7)


async def test_a_site_is_backed_up_when_its_schedule_says(world: Backed) -> None:
    answer = await world.ada.call("PUT", f"/sites/{world.site}/backups/schedule", {"frequency": "hourly"})
    await world.round()
    early = (await world.ada.get("/backups")).json()["total"]
    await world.panel.database.execute("UPDATE backup_schedules SET next_run_at = now() - interval '1 minute'")

    await world.round()
    backup = await world.newest()
    job = await world.job(backup["job_id"])
    await world.round()

    assert answer.json()["enabled"] is True
    assert early == 0
    assert job["status"] == "succeeded"
    assert (await world.newest())["cause"] == "scheduled"
    assert (await world.ada.get("/backups")).json()["total"] == 1


async def test_a_schedule_without_backups_is_overdue_and_one_that_is_off_never(world: Backed) -> None:
    path = f"/sites/{world.site}/backups/schedule"
    await world.panel.database.execute("UPDATE sites SET created_at = now() - interval '3 days'")
    off = (await world.ada.get(path)).json()
    late = (await world.ada.call("PUT", path, {"frequency": "daily", "hour": 4})).json()
    await world.backup()
    fine = (await world.ada.get(path)).json()
    none = (await world.ada.call("PUT", path, {"enabled": False})).json()

    assert [seen["overdue"] for seen in (off, late, fine, none)] == [False, True, False, False]
    assert none["next_run_at"] is None


async def test_a_site_keeps_as_many_backups_as_its_schedule_says(world: Backed, restic: RecordedRestic) -> None:
    keep = {"keep_last": 2, "keep_daily": 0, "keep_weekly": 0, "keep_monthly": 0}
    await world.ada.call("PUT", f"/sites/{world.site}/backups/schedule", keep)
    made = [(await world.backup())["id"] for _ in range(3)]

    kept = [backup["id"] for backup in (await world.ada.get("/backups")).json()["items"]]

    (repository,) = restic.repositories.values()
    assert kept == made[:0:-1]
    assert len(repository) == len(kept)


def test_the_last_of_each_period_is_kept() -> None:
    made = [(uuid4(), NOW - timedelta(hours=12 * age)) for age in range(80)]
    age_of = {backup_id: age for age, (backup_id, _) in enumerate(made)}

    gone = expired(made, RetentionPolicy(last=1, daily=3, weekly=2, monthly=2))

    kept = {age for backup_id, age in age_of.items() if backup_id not in gone}
    # The last one, noon of the two days before, of the Sunday before, and of the last day of October.
    assert kept == {0, 2, 4, 14, 44}


def test_the_newest_is_kept_whatever_the_rules_say() -> None:
    (newest, older) = ((uuid4(), NOW), (uuid4(), NOW - timedelta(days=1)))

    assert expired([older, newest], RetentionPolicy(0, 0, 0, 0)) == [older[0]]


def test_the_next_run_is_behind_now_at_the_hour_and_the_weekday_that_are_said() -> None:
    hourly = next_run(Frequency.HOURLY, 3, 2, SITE, NOW)
    daily = next_run(Frequency.DAILY, 3, 2, SITE, NOW)
    weekly = next_run(Frequency.WEEKLY, 3, 2, SITE, NOW)

    assert hourly == datetime(2026, 11, 22, 12, 7, tzinfo=UTC)
    assert daily == datetime(2026, 11, 23, 3, 7, tzinfo=UTC)
    assert weekly == datetime(2026, 11, 25, 3, 7, tzinfo=UTC)
    assert next_run(Frequency.WEEKLY, 3, 2, SITE, weekly) == weekly + timedelta(weeks=1)


def test_a_backup_is_overdue_after_twice_its_period() -> None:
    hour = timedelta(hours=1)

    assert not overdue(Frequency.HOURLY, NOW - 2 * hour, NOW - 90 * hour, NOW)
    assert overdue(Frequency.HOURLY, NOW - 2.1 * hour, NOW - 90 * hour, NOW)
    assert overdue(Frequency.HOURLY, None, NOW - 3 * hour, NOW)
