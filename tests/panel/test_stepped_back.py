"""A panel whose database has lost its last commits: nothing is given out twice, and nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from svc.panel.config import PanelConfig
from svc.service.panel.core import open_core
from svc_actors.panel.jobs import JobStatus, get_job
from svc_actors.panel.stepped_back import ALERT, SKIPPED, UNRECORDED_ALERT, UnrecordedSites
from svc_actors.store import Database
from svc_actors.store.embedded import OWNER_ROLE, SERVICE_ROLE
from svc_actors.store.marks import FILE
from tests.panel.jobs.work import queue
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_sites import site_row

INSIDE = {
    "event_inbox_id_seq": "positions of the log are given anew",
    "audit_id_seq": "the trail counts on, and the digests that were logged say what is missing",
    "password_asks_id_seq": "orders of asks",
    "job_turns": "an order among jobs",
    "health_events_id_seq": "history, shown here alone",
}
"""Sequences whose numbers nothing outside of the database is called by."""


@pytest.fixture
async def url(panel_database_url: str, tmp_path: Path) -> str:
    """Of a database on which a core has run. It ends before a test writes what is due, so that it does none of it."""
    async with core(panel_database_url, tmp_path):
        pass
    return panel_database_url


@asynccontextmanager
async def core(url: str, folder: Path) -> AsyncIterator[None]:
    config = PanelConfig(data_dir=folder, public_host="panel.test", socket=folder / "core.sock")
    owner = url.replace(f"//{SERVICE_ROLE}@", f"//{OWNER_ROLE}@", 1)
    environ = {"SVC_DATABASE_URL": url, "SVC_DATABASE_OWNER_URL": owner}
    async with open_core(config, environ, recorded_host()):
        yield


async def lose_a_commit(database: Database, folder: Path) -> None:
    """The core that ran in this folder knows of one more than the database has, in a row that no core writes."""
    known = json.loads((folder / FILE).read_bytes())
    await database.execute("INSERT INTO commit_marks VALUES ($1, 99999, 4, now())", UUID(known["holder"]))
    known["marks"]["99999"] = 5
    (folder / FILE).write_text(json.dumps(known))


async def alerts(database: Database) -> dict[str, str]:
    rows = await database.fetch("SELECT key, message FROM alerts WHERE closed_at IS NULL")
    return {row["key"]: row["message"] for row in rows}


@asynccontextmanager
async def stepped_back(url: str, database: Database, folder: Path) -> AsyncIterator[None]:
    """A core that was started on a database that has lost a commit of the one before."""
    await lose_a_commit(database, folder)
    async with core(url, folder):
        yield


async def person(database: Database, folder: Path) -> Any:
    async with open_panel(database, folder, loops=["sites without a record"]) as panel:
        return await panel.person("ada@example.com")


async def test_a_usual_restart_closes_nothing(url: str, panel_database: Database, tmp_path: Path) -> None:
    for _ in range(2):
        async with core(url, tmp_path):
            assert ALERT not in await alerts(panel_database)


async def test_numbers_of_sites_that_the_server_has_are_not_given_out(
    url: str, panel_database: Database, tmp_path: Path
) -> None:
    ada = await person(panel_database, tmp_path)
    await site_row(panel_database, ada, "kept.example.com")
    for number in (1001, 1002, 1240):
        (tmp_path / "sites" / f"s{number}").mkdir(parents=True)
    (tmp_path / "imports" / "i317").mkdir(parents=True)

    async with stepped_back(url, panel_database, tmp_path):
        new = await site_row(panel_database, ada, "new.example.com")
        number = await panel_database.fetchval("SELECT number FROM sites WHERE id = $1", new)
        shown = await alerts(panel_database)

    assert number > 1240
    assert await panel_database.fetchval("SELECT nextval('imports_number_seq')") > 317
    assert "s1002, s1240" in shown[UNRECORDED_ALERT]
    assert "s1001" not in shown[UNRECORDED_ALERT]
    assert "lost its last commits" in shown[ALERT]


async def test_the_alert_about_a_site_without_a_record_closes_once_it_is_gone(
    url: str, panel_database: Database, tmp_path: Path
) -> None:
    home = tmp_path / "sites" / "s1002"
    home.mkdir(parents=True)
    config = PanelConfig(data_dir=tmp_path, public_host="panel.test", socket=tmp_path / "core.sock")
    watch = UnrecordedSites(panel_database, config.folders)
    await watch.round()
    assert UNRECORDED_ALERT in await alerts(panel_database)

    home.rmdir()
    await watch.round()

    assert UNRECORDED_ALERT not in await alerts(panel_database)


async def test_jobs_that_were_queued_or_ran_are_not_done(url: str, panel_database: Database, tmp_path: Path) -> None:
    jobs = [await queue(panel_database, "updates.look", "look") for _ in range(2)]
    await panel_database.execute("UPDATE jobs SET status = 'running', started_at = now() WHERE id = $1", jobs[0])
    await panel_database.execute("UPDATE job_steps SET status = 'running' WHERE job_id = $1", jobs[0])

    async with stepped_back(url, panel_database, tmp_path):
        pass

    for job_id in jobs:
        job = await get_job(panel_database, job_id)
        assert job is not None
        assert job.status is JobStatus.FAILED
    assert await queue(panel_database, "updates.look", "look") > max(jobs) + SKIPPED["jobs_id_seq"]


async def test_mails_that_wait_are_sent_but_those_with_a_link_that_ended(
    url: str, panel_database: Database, tmp_path: Path
) -> None:
    for kind, perishable in (("alerts", False), ("password_reset", True)):
        await panel_database.execute(
            """INSERT INTO mails (id, message_id, kind, recipient, subject, content, perishable, deadline_at)
               VALUES (gen_random_uuid(), $1, $1, 'ada@example.com', 's', 'x', $2, now() + interval '1 day')""",
            kind,
            perishable,
        )

    async with stepped_back(url, panel_database, tmp_path):
        pass

    rows = await panel_database.fetch("SELECT kind FROM mails WHERE state = 'queued'")
    assert [row["kind"] for row in rows] == ["alerts"]


async def test_what_was_due_of_schedules_is_missed(url: str, panel_database: Database, tmp_path: Path) -> None:
    ada = await person(panel_database, tmp_path)
    site = await site_row(panel_database, ada, "kept.example.com")
    schedule = await panel_database.fetchval(
        """INSERT INTO schedules (site_id, name, kind, path, cron, time_zone, time_limit_seconds, next_run_at)
           VALUES ($1, 'tasks', 'python', 'private/tasks.py', '*/5 * * * *', 'UTC', 60, now() - interval '20 s')
           RETURNING id""",
        site,
    )

    async with stepped_back(url, panel_database, tmp_path):
        pass

    runs = await panel_database.fetch("SELECT status FROM schedule_runs WHERE schedule_id = $1", schedule)
    assert [row["status"] for row in runs] == ["missed"]
    assert await panel_database.fetchval("SELECT next_run_at > now() FROM schedules WHERE id = $1", schedule)


async def test_every_sequence_goes_on_above_what_was_lost_or_is_known_inside_alone(panel_database: Database) -> None:
    names = {row["name"] for row in await panel_database.fetch("SELECT sequencename AS name FROM pg_sequences")}

    assert names == {*SKIPPED, *INSIDE, "site_numbers"}
