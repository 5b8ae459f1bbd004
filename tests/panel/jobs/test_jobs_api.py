"""GET /jobs, /jobs/{id}, /jobs/{id}/log and POST /jobs/{id}/cancel (hosting-panel-api.md, Job endpoints)."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from svc_actors.panel.jobs import JobClass, JobRun
from svc_actors.store import Database
from svc_common.errors import conflict
from tests.panel.jobs.work import Held, Steps, ended, nothing, queue
from tests.support.panel import PanelHarness, open_panel

SPECIFIED = {"id", "kind", "title", "status", "progress", "steps"}
ADDED = {"site_id", "owner_id", "created_at", "started_at", "ended_at"}


async def refuse(run: JobRun) -> None:
    raise conflict("It is in use.")


async def done(panel: PanelHarness, job_id: int) -> None:
    await ended(panel.services.jobs, panel.database, job_id)


async def test_a_job_has_the_members_of_the_specification_and_an_error_only_when_it_failed(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(work=nothing, refuse=refuse)}, loops=["jobs"]
    ) as panel:
        root = await panel.administrator()
        good = await queue(panel_database, "build", "work")
        bad = await queue(panel_database, "build", "work", "refuse", "work")
        await done(panel, good)
        await done(panel, bad)

        succeeded = (await root.get(f"/jobs/{good}")).json()
        failed = (await root.get(f"/jobs/{bad}")).json()
        log = (await root.get(f"/jobs/{bad}/log")).json()

    assert set(succeeded) == SPECIFIED | ADDED
    assert set(failed) == SPECIFIED | ADDED | {"error"}
    assert type(succeeded["id"]) is int
    assert failed["error"] == {"code": "conflict", "message": "It is in use.", "hint": ""}
    assert [step["status"] for step in failed["steps"]] == ["succeeded", "failed", "cancelled"]
    assert [step.get("error") for step in failed["steps"]] == [None, failed["error"], None]
    assert ["error" in step for step in failed["steps"]] == [False, True, False]
    assert [step["position"] for step in failed["steps"]] == [1, 2, 3]
    assert [set(line) for line in log] == [{"seq", "at", "step", "message"}]


async def test_the_list_is_narrowed_by_status_kind_and_site(panel_database: Database, tmp_path: Path) -> None:
    site = uuid4()
    work = {"build": Steps(work=nothing, refuse=refuse), "paint": Steps(work=nothing)}
    async with open_panel(panel_database, tmp_path, work=work, loops=["jobs"]) as panel:
        root = await panel.administrator()
        first = await queue(panel_database, "build", "work")
        second = await queue(panel_database, "build", "refuse", job_class=JobClass.SITES, site=site)
        third = await queue(panel_database, "paint", "work")
        for job_id in (first, second, third):
            await done(panel, job_id)

        async def ids(query: str) -> list[int]:
            page = (await root.get(f"/jobs{query}")).json()
            assert page["total"] == len(page["items"])
            return [job["id"] for job in page["items"]]

        found = [await ids(q) for q in ("", "?status=failed", "?kind=build", f"?site={site}", f"?site={uuid4()}")]
        wrong = await root.get("/jobs?kind=%27%3B--")

    assert found == [[third, second, first], [second], [second, first], [second], []]
    assert wrong.status_code == 400


async def test_customers_see_their_own_jobs_and_anothers_is_as_absent(panel_database: Database, tmp_path: Path) -> None:
    held = Held()
    async with open_panel(panel_database, tmp_path, work={"build": Steps(hold=held.hold)}, loops=["jobs"]) as panel:
        ada, eve = await panel.person("ada@example.com"), await panel.person("eve@example.com")
        hers, theirs = panel.program(await panel.token(ada)), panel.program(await panel.token(eve))
        job_id = await queue(panel_database, "build", "hold", owner=ada)
        of_nobody = await queue(panel_database, "build", "hold")
        await held.until(lambda: held.begun == [job_id])

        own = (await hers.get("/jobs")).json()
        foreign = (await theirs.get("/jobs")).json()
        refused = [
            await theirs.get(f"/jobs/{job_id}"),
            await theirs.get(f"/jobs/{job_id}/log"),
            await theirs.post(f"/jobs/{job_id}/cancel"),
            await hers.get(f"/jobs/{of_nobody}"),
            await hers.get("/jobs/999999"),
        ]
        held.release(job_id, of_nobody)
        await done(panel, job_id)

    assert [job["id"] for job in own["items"]] == [job_id]
    assert foreign["items"] == []
    assert {answer.status_code for answer in refused} == {404}
    assert len({answer.text for answer in refused}) == 1


@pytest.mark.parametrize("scope", ["read", "jobs"])
async def test_tokens_that_only_read_see_jobs_and_cancel_none(
    panel_database: Database, tmp_path: Path, scope: str
) -> None:
    held = Held()
    async with open_panel(panel_database, tmp_path, work={"build": Steps(hold=held.hold)}, loops=["jobs"]) as panel:
        ada = await panel.person("ada@example.com")
        reader = panel.program(await panel.token(ada, (scope,)))
        job_id = await queue(panel_database, "build", "hold", owner=ada)
        await held.until(lambda: held.begun == [job_id])

        seen = await reader.get(f"/jobs/{job_id}")
        refused = await reader.post(f"/jobs/{job_id}/cancel")
        held.release(job_id)
        await done(panel, job_id)
        after = await reader.get(f"/jobs/{job_id}")

    assert seen.json()["status"] == "running"
    assert refused.json()["error"]["code"] == "forbidden"
    assert after.json()["status"] == "succeeded"


async def test_a_queued_job_is_cancelled_and_audited(panel_database: Database, tmp_path: Path) -> None:
    held = Held()
    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(hold=held.hold, work=nothing)}, loops=["jobs"]
    ) as panel:
        root = await panel.administrator()
        first = await queue(panel_database, "build", "hold")
        second = await queue(panel_database, "build", "hold", "work")
        await held.until(lambda: held.begun == [first])

        cancelled = (await root.post(f"/jobs/{second}/cancel")).json()
        again = await root.post(f"/jobs/{second}/cancel")
        held.release(first)
        await done(panel, first)
        audit = [row for row in await panel.audit() if row["operation"] == "job.cancel"]

    assert cancelled["status"] == "cancelled"
    assert [step["status"] for step in cancelled["steps"]] == ["cancelled", "cancelled"]
    assert "error" not in cancelled
    assert again.json()["error"]["code"] == "conflict"
    assert held.begun == [first]
    assert [(row["target_kind"], row["target_id"], row["outcome"]) for row in audit] == [
        ("job", str(second), "ok"),
        ("job", str(second), "denied"),
    ]


async def test_a_running_job_is_cancelled_with_its_step(panel_database: Database, tmp_path: Path) -> None:
    held = Held()
    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(hold=held.hold, work=nothing)}, loops=["jobs"]
    ) as panel:
        root = await panel.administrator()
        job_id = await queue(panel_database, "build", "work", "hold", "work")
        await held.until(lambda: held.begun == [job_id])

        cancelled = (await root.post(f"/jobs/{job_id}/cancel")).json()

        assert held.now == set()
    assert cancelled["status"] == "cancelled"
    assert [step["status"] for step in cancelled["steps"]] == ["succeeded", "cancelled", "cancelled"]
    assert "error" not in cancelled


async def test_what_cannot_be_taken_back_goes_on(panel_database: Database, tmp_path: Path) -> None:
    held = Held()
    async with open_panel(panel_database, tmp_path, loops=["jobs"]) as panel:
        panel.services.jobs.handle("test.delete", Steps(hold=held.hold), irrevocable="A deletion cannot be taken back.")
        root = await panel.administrator()
        job_id = await queue(panel_database, "test.delete", "hold")
        await held.until(lambda: held.begun == [job_id])

        refused = await root.post(f"/jobs/{job_id}/cancel")
        held.release(job_id)
        await done(panel, job_id)

    assert refused.json()["error"]["code"] == "conflict"
    assert "taken back" in refused.json()["error"]["message"]


async def test_its_owner_is_told_of_each_change(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(one=nothing, two=nothing)}, loops=["events", "jobs"]
    ) as panel:
        ada = await panel.person("ada@example.com")
        async with panel.services.events.subscribe(None) as changes:
            job_id = await queue(panel_database, "build", "one", "two", owner=ada)

            told = []
            async for event in changes:
                told.append(event)
                if event.payload["status"] == "succeeded":
                    break

    assert [(event.kind, event.subject, event.project_id) for event in told] == [("job", str(job_id), ada)] * 4
    assert [event.payload["status"] for event in told] == ["queued", "running", "running", "succeeded"]
    assert [event.payload["progress"] for event in told] == [0, 0, 50, 100]
