"""A core that dies at any step of bringing sites back: the next order goes on, and all is there byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.backups.restore import RestoreWork
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.jobs import INTERRUPTED
from svc_actors.panel.recovery import sites as recovering
from svc_actors.panel.recovery.sites import SitesRecovery
from tests.panel.recovery.test_recovery import a_life, become
from tests.support.lost_server import Hosting, Server
from tests.support.restic import RecordedRestic

STEPS: tuple[tuple[Any, str], ...] = (
    (SitesRecovery, "_bring_back"),
    (SiteDatabases, "agree"),
    (RecordedRestic, "init"),
    (RecordedRestic, "copy"),
    (SitesRecovery, "_restore"),
    (RestoreWork, "plan"),
    (RestoreWork, "reserve_disk"),
    (RestoreWork, "fetch"),
    (RestoreWork, "verify"),
    (RestoreWork, "load_databases"),
    (RestoreWork, "switch"),
    (RestoreWork, "configure"),
    (recovering, "write_recovered"),
    (recovering, "mark_reported"),
)
"""In the order in which they are taken."""


async def nothing(*_: object, **__: object) -> None:
    """A core that was killed tidies nothing up."""


async def begun(server: Server, first: bool) -> int:
    """The job that brings sites back: begun by the core that has become the lost server, or ordered."""
    if first:
        job: int = (await server.recovery())["recovered"]["job_id"]
        return job
    answer = await server.root.post("/recovery/run", {})
    assert answer.status_code == 200, answer.text
    ordered: int = answer.json()["id"]
    return ordered


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_core_that_dies_at_any_step_leaves_what_the_next_order_goes_on_with(
    hosting: Hosting,
    panel_database_url: str,
    new_url: str,
    tmp_path: Path,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
    shutil.rmtree(tmp_path / "old")
    new = tmp_path / "new"
    await become(hosting, new_url, new, disk, before["key"])

    for number, (owner, name) in enumerate(STEPS):
        reached, whole = trio.Event(), getattr(owner, name)

        async def stop(*args: Any, whole: Any = whole, reached: trio.Event = reached, **kwargs: Any) -> None:
            if after:
                await whole(*args, **kwargs)
            reached.set()
            await trio.sleep_forever()

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stop)
            patch.setattr(Tools, "clean", nothing)
            patch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
            async with hosting.open(new_url, new) as server:
                job_id = await begun(server, number == 0)
                with trio.fail_after(120):
                    await reached.wait()
        async with hosting.open(new_url, new) as server:
            left = await server.job(job_id)
            told = await server.database.fetchval(
                "SELECT count(*) FROM webhook_events WHERE event = 'recovery.completed'"
            )
            assert (left["status"], left["error"]["message"]) == ("failed", INTERRUPTED.message), name
            assert told == 0, name

    async with hosting.open(new_url, new) as server:
        job = await server.job(await begun(server, first=False))
        files = {domain: server.files(await server.number(site)) for domain, site in before["sites"].items()}
        events = await server.database.fetch("SELECT event FROM webhook_events WHERE event LIKE 'recovery.%'")
        again = await server.root.post("/recovery/run", {})
    assert job["status"] == "succeeded", job
    assert files == before["files"]
    assert [row["event"] for row in events] == ["recovery.completed"]
    assert again.status_code == 409
    assert [path.name for path in (new / "sites").iterdir() if path.name.startswith(".restore")] == []
