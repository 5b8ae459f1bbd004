"""Scheduled tasks by the API: what can be said, who may say it, and what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from svc_actors.panel.schedules.records import MOST_OF_A_SITE
from svc_webhost.site_tasks import Interpreter, SiteScript
from tests.panel.schedules.world import ScheduleWorld
from tests.support.harness import Client


async def test_a_task_is_made_changed_and_deleted(world: ScheduleWorld) -> None:
    made = await world.create(cron="30 6 * * mon", time_zone="Europe/Berlin", args=["--all", "with spaces; `id`"])

    listed = (await world.ada.get(f"/sites/{world.site}/schedules")).json()
    changed = (await world.ada.patch(f"/schedules/{made['id']}", {"cron": "0 7 * * *", "name": "mornings"})).json()
    paused = (await world.ada.patch(f"/schedules/{made['id']}", {"enabled": False})).json()
    deleted = await world.ada.delete(f"/schedules/{made['id']}")
    gone = await world.ada.get(f"/schedules/{made['id']}")

    assert made["next_run_at"] == "2026-11-23T05:30:00Z"
    assert listed == [made]
    assert made["args"] == ["--all", "with spaces; `id`"]
    assert (changed["name"], changed["next_run_at"]) == ("mornings", "2026-11-23T06:00:00Z")
    assert (paused["enabled"], paused["next_run_at"]) == (False, None)
    assert deleted.json() == {}
    assert gone.status_code == 404


async def test_changes_are_audited_and_arguments_are_not_told(world: ScheduleWorld) -> None:
    made = await world.create(args=["a secret"])
    await world.ada.patch(f"/schedules/{made['id']}", {"args": ["another secret"]})
    await world.ada.post(f"/schedules/{made['id']}/run")
    await world.runs_once(made, "succeeded")
    await world.ada.delete(f"/schedules/{made['id']}")

    rows = [row for row in await world.panel.audit() if row["operation"].startswith("schedule.")]

    operations = ["schedule.create", "schedule.update", "schedule.run", "schedule.delete"]
    assert [row["operation"] for row in rows] == operations
    assert "secret" not in str(rows)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"cron": "* * * * * id"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 feb *"}, "cron"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"path": "../../etc/passwd"}, "path"),
        ({"path": "/etc/passwd"}, "path"),
        ({"path": "private/../../x.py"}, "path"),
        ({"kind": "sh"}, "kind"),
        ({"kind": "url", "path": "private/tasks.py"}, "path"),
        ({"kind": "url", "path": "//elsewhere.example/"}, "path"),
        ({"kind": "url", "path": "/a\r\nHost: x"}, "path"),
        ({"kind": "url", "path": "/", "args": ["x"]}, "args"),
        ({"args": ["a\nb"]}, "args"),
        ({"args": ["x"] * 33}, "args"),
        ({"command": "rm -rf /"}, "command"),
        ({"time_limit_seconds": 0}, "time_limit_seconds"),
    ],
)
async def test_what_is_no_task_is_refused(world: ScheduleWorld, values: dict[str, Any], field: str) -> None:
    body = {"name": "tasks", "kind": "php", "path": "private/t.php", "cron": "0 4 * * *"}

    answer = await world.ada.post(f"/sites/{world.site}/schedules", body | values)

    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert (await world.ada.get(f"/sites/{world.site}/schedules")).json() == []


async def test_a_change_cannot_make_of_a_script_what_no_script_is(world: ScheduleWorld) -> None:
    made = await world.create()

    answer = await world.ada.patch(f"/schedules/{made['id']}", {"path": "/wp-cron.php"})

    assert answer.status_code == 400
    assert (await world.ada.get(f"/schedules/{made['id']}")).json() == made


async def test_a_name_is_there_once_and_their_number_is_bounded(world: ScheduleWorld) -> None:
    await world.create(name="0", cron="0 0 1 1 *")
    body = {"kind": "url", "path": "/", "cron": "0 0 1 1 *"}

    again = await world.ada.post(f"/sites/{world.site}/schedules", {"name": "0", **body})
    for number in range(1, MOST_OF_A_SITE):
        await world.create(name=str(number), **body)
    one_more = await world.ada.post(f"/sites/{world.site}/schedules", {"name": "more", **body})

    assert (again.status_code, one_more.status_code) == (409, 409)
    assert len((await world.ada.get(f"/sites/{world.site}/schedules")).json()) == MOST_OF_A_SITE


async def test_to_another_customer_it_is_not_there(world: ScheduleWorld) -> None:
    made = await world.create()
    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "succeeded")
    place = f"/schedules/{made['id']}"

    answers = [
        await world.bob.get(f"/sites/{world.site}/schedules"),
        await world.bob.get(place),
        await world.bob.patch(place, {"name": "mine"}),
        await world.bob.delete(place),
        await world.bob.post(f"{place}/run"),
        await world.bob.get(f"{place}/runs"),
        await world.bob.get(f"{place}/runs/{run['id']}"),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert (await world.ada.get(place)).json()["name"] == "tasks"


async def test_what_was_asked_for_runs_at_once_and_its_words_are_kept(world: ScheduleWorld) -> None:
    made = await world.create(args=["-v"], cron="0 0 1 1 *")

    asked = (await world.ada.post(f"/schedules/{made['id']}/run")).json()
    [run] = await world.runs_once(made, "succeeded")
    log = (await world.ada.get(f"/schedules/{made['id']}/runs/{run['id']}")).json()
    [script] = world.tasks.begun

    assert (asked["status"], asked["due_at"]) == ("queued", None)
    assert (run["id"], run["exit_status"]) == (asked["id"], 0)
    assert log["output"] == "done"
    assert isinstance(script, SiteScript)
    assert (script.interpreter, script.path, script.arguments) == (Interpreter.PYTHON, "private/tasks.py", ("-v",))


async def member(world: ScheduleWorld, role: str) -> Client:
    """Somebody whom Ada lets work in her account."""
    person = await world.panel.person(f"{role}@example.com", "member")
    await world.panel.database.execute(
        """INSERT INTO account_members (account_id, user_id, role, invited_by, accepted_at)
           SELECT id, $1, $2, 'ada@example.com', now() FROM users WHERE email = 'ada@example.com'""",
        person,
        role,
    )
    return world.panel.program(await world.panel.token(person))


@pytest.mark.parametrize(("role", "sees"), [("viewer", False), ("editor", False), ("developer", True)])
async def test_what_may_be_secret_of_a_task_is_seen_by_roles_that_may_change_it(
    world: ScheduleWorld, role: str, sees: bool
) -> None:
    made = await world.create(args=["--key", "hunter2"], cron="0 0 1 1 *")
    url = await world.create(name="url", kind="url", path="/tasks?key=hunter2", cron="0 0 1 1 *")
    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "succeeded")
    them = await member(world, role)

    listed = (await them.get(f"/sites/{world.site}/schedules")).json()
    one = (await them.get(f"/schedules/{made['id']}")).json()
    runs = await them.get(f"/schedules/{made['id']}/runs")
    log = await them.get(f"/schedules/{made['id']}/runs/{run['id']}")

    audit = [row["details"] for row in await world.panel.audit() if row["operation"] == "schedule.create"]

    hidden = [made | {"args": None}, url | {"args": None, "path": "/tasks"}]
    assert listed == ([made, url] if sees else hidden)
    assert one == listed[0]
    assert "hunter2" not in str(audit)
    assert runs.json()[0]["status"] == "succeeded"
    assert log.status_code == (200 if sees else 403)
    assert "hunter2" not in log.text


async def test_a_token_that_only_reads_reads_no_arguments_and_no_output(world: ScheduleWorld) -> None:
    made = await world.create(args=["hunter2"], cron="0 0 1 1 *")
    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "succeeded")
    owner = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
    reader = world.panel.program(await world.panel.token(owner, ("read",)))

    one = await reader.get(f"/schedules/{made['id']}")
    log = await reader.get(f"/schedules/{made['id']}/runs/{run['id']}")

    assert one.json() == made | {"args": None}
    assert log.status_code == 403


async def test_who_read_what_a_run_wrote_is_in_the_audit(world: ScheduleWorld) -> None:
    made = await world.create(cron="0 0 1 1 *")
    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "succeeded")

    await world.ada.get(f"/schedules/{made['id']}/runs/{run['id']}")

    [row] = [row for row in await world.panel.audit() if row["operation"] == "schedule.log"]
    assert row["details"] == {"site": "ada.example.com", "run": run["id"]}
