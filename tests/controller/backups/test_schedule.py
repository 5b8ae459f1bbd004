"""When a backup is due: at its own moment of the hour, once, and made up for once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_actors.controller.backups.schedule import BackupPolicy, BackupSchedule, next_due

POLICIES = st.builds(
    BackupPolicy,
    st.sampled_from([BackupSchedule.DAILY, BackupSchedule.WEEKLY]),
    st.integers(0, 23),
    st.integers(0, 6),
)
MOMENTS = st.datetimes(datetime(2025, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
VM = UUID(int=600)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@given(POLICIES, st.uuids(), MOMENTS)
def test_a_machine_is_due_once_a_period_within_the_hour_of_its_plan(
    policy: BackupPolicy, vm_id: UUID, now: datetime
) -> None:
    due = next_due(policy, vm_id, done=None, since=LONG_AGO, now=now)
    assert now - policy.period < due <= now
    assert due.hour == policy.hour
    if policy.schedule is BackupSchedule.WEEKLY:
        assert due.isoweekday() % 7 == policy.weekday  # 0 is Sunday
    # Once it was begun the next is a period later, whenever that is asked
    after = next_due(policy, vm_id, done=now, since=LONG_AGO, now=now)
    assert after == due + policy.period
    assert next_due(policy, vm_id, done=now, since=LONG_AGO, now=after) == after
    assert next_due(policy, vm_id, done=now, since=LONG_AGO, now=after - timedelta(seconds=1)) == after


@given(POLICIES, st.uuids(), MOMENTS, st.timedeltas(timedelta(0), timedelta(days=90)))
def test_an_outage_is_made_up_for_by_one_run(
    policy: BackupPolicy, vm_id: UUID, back: datetime, outage: timedelta
) -> None:
    done = back - outage
    due = next_due(policy, vm_id, done=done, since=LONG_AGO, now=back)
    assert due > done - policy.period
    assert next_due(policy, vm_id, done=back, since=LONG_AGO, now=back) > back


@given(POLICIES, st.uuids(), MOMENTS)
def test_no_run_is_owed_from_before_the_policy(policy: BackupPolicy, vm_id: UUID, now: datetime) -> None:
    assert next_due(policy, vm_id, done=None, since=now + timedelta(microseconds=1), now=now) > now


def test_machines_of_one_plan_are_spread_over_the_hour() -> None:
    policy = BackupPolicy(BackupSchedule.DAILY, hour=3)
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    dues = [next_due(policy, UUID(int=number), done=None, since=LONG_AGO, now=now) for number in (0, 600, 3599)]
    assert [(due.hour, due.minute, due.second) for due in dues] == [(3, 0, 0), (3, 10, 0), (3, 59, 59)]


@pytest.mark.parametrize(("keep", "copies", "superseded"), [(0, 9, 0), (2, 2, 0), (2, 3, 1), (3, 7, 4), (5, 2, 0)])
def test_what_is_more_than_is_kept(keep: int, copies: int, superseded: int) -> None:
    assert BackupPolicy(BackupSchedule.DAILY, keep=keep).superseded(copies) == superseded


def test_one_is_never_kept_alone() -> None:
    with pytest.raises(ValueError, match="2 and more"):
        BackupPolicy(BackupSchedule.DAILY, keep=1)
