"""A new site is backed up from its first day, unless its plan or the server's settings say otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_actors.panel.backups.schedules import Frequency, default_time, next_run
from svc_actors.store import Database
from tests.panel.sites.world import World, world_of

FREQUENCIES = tuple(Frequency)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made


async def schedule_of(world: World, site: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await world.ada.get(f"/sites/{site['id']}/backups/schedule")).json()
    return found


async def chosen(world: World, domain: str) -> str:
    """How often a site that is created now is backed up."""
    schedule = await schedule_of(world, await world.create(domain))
    return str(schedule["frequency"]) if schedule["enabled"] else "off"


async def test_a_new_site_is_backed_up_every_night_and_keeps_seven_days_and_four_weeks(world: World) -> None:
    schedule = await schedule_of(world, await world.create("ada.example.com"))

    assert (schedule["enabled"], schedule["frequency"]) == (True, "daily")
    assert (schedule["keep_daily"], schedule["keep_weekly"]) == (7, 4)
    assert datetime.fromisoformat(schedule["next_run_at"]) < datetime.now(UTC) + timedelta(hours=26)


async def test_the_settings_decide_unless_the_plan_does(world: World) -> None:
    plan = (await world.root.post("/plans", {"name": "small"})).json()
    await world.root.post(f"/accounts/{world.ada_id}/plan", {"plan": "small"})
    found = []
    for number, (settings, planned) in enumerate(
        (("weekly", None), ("off", None), ("off", "hourly"), ("daily", "off"))
    ):
        await world.root.patch("/settings", {"default_backups": settings})
        answer = await world.root.patch(f"/plans/{plan['id']}", {"default_backups": planned})
        assert answer.json()["default_backups"] == planned
        found.append(await chosen(world, f"ada{number}.example.com"))

    assert found == ["weekly", "off", "hourly", "off"]


async def test_what_an_owner_chose_stays_when_the_default_changes(world: World) -> None:
    site = await world.create("ada.example.com")
    await world.ada.call("PUT", f"/sites/{site['id']}/backups/schedule", {"enabled": False})
    await world.root.patch("/settings", {"default_backups": "hourly"})

    assert (await schedule_of(world, site))["enabled"] is False


async def test_a_wrong_default_is_refused_and_changes_nothing(world: World) -> None:
    refused = await world.root.patch("/settings", {"default_backups": "monthly"})

    assert refused.status_code == 400
    assert (await world.root.get("/settings")).json()["default_backups"] == "daily"


@given(site=st.uuids(), frequency=st.sampled_from(FREQUENCIES), after=st.datetimes(timezones=st.just(UTC)))
def test_default_times_lie_in_the_night(site: UUID, frequency: Frequency, after: datetime) -> None:
    hour, weekday = default_time(site)
    try:
        at = next_run(frequency, hour, weekday, site, after)
    except OverflowError:
        return  # the end of the year 9999

    assert 1 <= hour <= 5
    assert after < at <= after + frequency.period
    assert frequency is not Frequency.WEEKLY or at.weekday() == weekday
