"""Updates of packages: installed when they are wanted and never otherwise, with the sites visited around it."""

from __future__ import annotations

import fcntl
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.panel.updates.work import STEPS, check_daily
from svc_actors.store import Database
from svc_common.errors import ServiceError, unavailable
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import ServiceName
from svc_webhost.packages import DebianPackages, PackageUpdate, RunProgram, managed, updates_in
from svc_webhost.php.extensions import PhpExtensions
from svc_webhost.site_runtime import service_name
from svc_webhost.site_tasks import SiteScript, SiteVisit, Take
from tests.panel.sites.world import World as Sites
from tests.panel.sites.world import world_of
from tests.support.packages import RecordedPackages
from tests.support.panel import RecordedLauncher, open_panel
from tests.support.panel_php import RecordedPhp
from tests.support.site_tasks import RecordedTasks

NGINX = PackageUpdate("nginx", "1.22-1", "1.22-2", security=True)
KNOT = PackageUpdate("knot", "3.2-1", "3.2-2", security=False)
PHP = PackageUpdate("php8.2-fpm", "8.2.1", "8.2.2", security=True)


@dataclass
class World:
    sites: Sites
    packages: RecordedPackages
    launcher: RecordedLauncher
    tasks: RecordedTasks

    @property
    def database(self) -> Database:
        return self.sites.panel.database

    async def show(self) -> dict[str, Any]:
        answer = await self.sites.root.get("/updates")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def install(self, **which: str) -> dict[str, Any]:
        """The job, when it has ended."""
        answer = await self.sites.root.post("/updates/install", which)
        assert answer.status_code == 200, answer.text
        return await self.sites.job_of(self.sites.root, answer.json())

    async def look(self) -> dict[str, Any]:
        return await self.sites.job_of(self.sites.root, (await self.sites.root.post("/updates/look")).json())

    async def mode(self, mode: str) -> None:
        assert (await self.sites.root.patch("/updates", {"mode": mode})).status_code == 200

    async def told(self) -> list[dict[str, Any]]:
        rows = await self.database.fetch("SELECT body FROM webhook_events WHERE event = 'update.installed'")
        return [json.loads(bytes(row["body"]))["data"] for row in rows]

    async def log(self, job: dict[str, Any]) -> str:
        lines = (await self.sites.root.get(f"/jobs/{job['id']}/log")).json()
        return "\n".join(line["message"] for line in lines)

    async def daily(self) -> list[str]:
        """The kinds of the jobs that a day's round has begun, once they have ended."""
        before = await self.database.fetchval("SELECT coalesce(max(id), 0) FROM jobs")
        await check_daily(self.database)
        rows = await self.database.fetch("SELECT id, kind FROM jobs WHERE id > $1", before)
        for row in rows:
            await self.sites.job_of(self.sites.root, {"id": row["id"]})
        return [row["kind"] for row in rows]

    def answers(self, statuses: dict[str, list[int]]) -> None:
        """What a site answers from now on, one status a visit; the last one stays."""

        async def act(task: SiteScript | SiteVisit, take: Take) -> int:
            assert isinstance(task, SiteVisit)
            left = statuses.get(task.domain, [200])
            return left.pop(0) if len(left) > 1 else left[0]

        self.tasks.act = act


async def queued(database: Database, *, status: str) -> int:
    """A job as an earlier core has left it."""
    job: int = await database.fetchval(
        """INSERT INTO jobs (kind, title, class, status, parameters, started_at)
           VALUES ('update.install', 'x', 'system', $1, '{"wanted": "all"}',
                   CASE WHEN $1 = 'running' THEN now() END) RETURNING id""",
        status,
    )
    await database.execute(
        """INSERT INTO job_steps (job_id, position, name, status)
           SELECT $1, position, name, CASE WHEN position = 1 THEN $3 ELSE 'queued' END
           FROM unnest($2::text[]) WITH ORDINALITY AS step (name, position)""",
        job,
        list(STEPS),
        status,
    )
    return job


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("svc_actors.panel.updates.work._PATIENCE", 0.3)
    monkeypatch.setattr("svc_actors.panel.updates.work._PAUSE", 0.05)
    async with world_of(panel_database, tmp_path) as sites:
        host = sites.panel.host
        packages = cast(RecordedPackages, host.packages)
        packages.offered = [NGINX, KNOT]
        yield World(sites, packages, cast(RecordedLauncher, host.launcher), cast(RecordedTasks, host.tasks))


async def test_what_there_is_is_shown_and_when_it_was_looked_for(world: World) -> None:
    before = await world.show()
    await world.look()
    after = await world.show()

    assert (before["mode"], before["looked_at"]) == ("manual", None)
    assert after["looked_at"] is not None
    assert [(each["name"], each["security"]) for each in after["updates"]] == [("nginx", True), ("knot", False)]


async def test_lists_that_cannot_be_fetched_fail_the_job_and_are_shown_beside_the_last_look(world: World) -> None:
    await world.look()
    world.packages.unreachable = "There is no network."
    job = await world.look()
    shown = await world.show()
    installed = await world.install()

    assert (job["status"], installed["status"]) == ("failed", "failed")
    assert shown["look_error"] == "There is no network."
    assert shown["looked_at"] is not None
    assert "install" not in world.packages.calls


async def test_security_updates_alone_are_installed_unless_all_are_wanted(world: World) -> None:
    first = await world.install()
    security = dict(world.packages.there)
    second = await world.install(which="all")

    assert first["status"] == second["status"] == "succeeded"
    assert security == {"nginx": "1.22-2", "knot": "3.2-1"}
    assert world.packages.there == {"nginx": "1.22-2", "knot": "3.2-2"}
    assert [data["packages"] for data in await world.told()] == ["nginx", "knot"]
    assert (await world.show())["last"] == {
        "job_id": second["id"],
        "packages": [{"name": "knot", "installed": "3.2-1", "available": "3.2-2", "security": False, "held": False}],
        "silent_sites": [],
    }


async def test_the_job_names_the_sites_that_answered_before_and_do_not_after(world: World) -> None:
    for name in ("well", "lost", "slow", "ill"):
        await world.sites.create(f"{name}.example.net")
    world.answers({"lost.example.net": [200, 502], "slow.example.net": [200, 0, 503, 200], "ill.example.net": [500]})

    job = await world.install()

    assert job["status"] == "failed"
    assert "lost.example.net" in job["error"]["message"]
    assert not any(name in job["error"]["message"] for name in ("well", "slow", "ill"))
    assert (await world.show())["last"]["silent_sites"] == ["lost.example.net"]
    [data] = await world.told()
    assert (data["packages"], data["silent_sites"]) == ("nginx", 1)


async def test_what_is_not_installed_fails_the_job_and_sites_are_looked_after_all_the_same(world: World) -> None:
    await world.sites.create("well.example.net")
    world.packages.offered = [NGINX, PHP]
    world.packages.broken = {"php8.2-fpm"}

    job = await world.install()
    statuses = {step["name"]: step["status"] for step in job["steps"]}
    [data] = await world.told()

    assert (statuses["install"], statuses["visit_after"]) == ("failed", "failed")
    assert job["error"]["message"] == "1 of 2 packages were not updated. Every site answers as before."
    assert (data["packages"], data["failed"], data["silent_sites"]) == ("nginx", 1, 0)
    assert "2 of 2" not in await world.log(job)


async def test_what_runs_from_old_files_is_started_anew_and_nothing_else(world: World) -> None:
    site, other = [await world.sites.create(f"{name}.example.net", type="php") for name in ("php", "new")]
    php = cast(RecordedPhp, world.sites.panel.host.php)
    [pool] = php.of(site["number"])
    shell = service_name(SiteAccount(site["number"]), "shell-1")
    world.packages.old = {ServiceName("nginx"), pool.service_name, shell}

    job = await world.install()

    assert job["status"] == "succeeded"
    assert world.launcher.restarted == ["nginx"]
    assert [each.restarts for each in php.of(site["number"])] == [0, 1]
    assert [each.restarts for each in php.of(other["number"])] == [0]
    assert "What runs for php.example.net was restarted." in await world.log(job)


async def test_where_there_is_nothing_to_install_no_site_is_visited_and_nothing_is_told(world: World) -> None:
    await world.sites.create("well.example.net")
    world.packages.offered = []

    job = await world.install()

    assert job["status"] == "succeeded"
    assert (world.tasks.begun, await world.told()) == ([], [])
    assert "install" not in world.packages.calls


async def test_a_package_that_is_held_stays_whatever_is_wanted_until_it_is_released(world: World) -> None:
    held = (await world.sites.root.post("/updates/hold", {"package": "nginx"})).json()
    unknown = await world.sites.root.post("/updates/hold", {"package": "bash"})
    job = await world.install(which="all")
    kept = dict(world.packages.there)
    await world.sites.root.post("/updates/release", {"package": "nginx"})
    await world.install()

    assert held["held"] == ["nginx"]
    assert unknown.status_code == 404
    assert job["status"] == "succeeded"
    assert kept == {"knot": "3.2-2"}
    assert world.packages.there["nginx"] == "1.22-2"


async def test_off_is_off(world: World) -> None:
    await world.mode("off")
    world.packages.calls.clear()
    refused = [await world.sites.root.post(f"/updates/{order}") for order in ("install", "look")]
    shown, begun = await world.show(), await world.daily()

    assert [answer.status_code for answer in refused] == [409, 409]
    assert shown["updates"] is None
    assert begun == []
    assert world.packages.calls == []


async def test_a_job_that_waited_while_updates_were_turned_off_fetches_and_installs_nothing(
    panel_database: Database, tmp_path: Path
) -> None:
    await panel_database.execute("INSERT INTO update_settings (mode) VALUES ('off')")
    job = await queued(panel_database, status="queued")
    async with world_of(panel_database, tmp_path) as sites:
        packages = cast(RecordedPackages, sites.panel.host.packages)
        packages.offered = [NGINX]
        ended = await sites.job_of(sites.root, {"id": job})

    assert ended["status"] == "failed"
    assert "Updates are off" in ended["error"]["message"]
    assert packages.calls == []


async def test_they_are_looked_for_once_a_day_and_installed_where_that_is_wanted(world: World) -> None:
    first, again = await world.daily(), await world.daily()
    there = dict(world.packages.there)
    await world.mode("automatic")
    same_day = await world.daily()
    await world.database.execute("UPDATE update_looks SET tried_at = now() - interval '25 hours'")
    next_day = await world.daily()

    assert (first, again, same_day, next_day) == (["update.look"], [], [], ["update.install"])
    assert there == {"knot": "3.2-1"}
    assert world.packages.there == {"knot": "3.2-1", "nginx": "1.22-2"}


async def alert(world: World) -> str | None:
    found: str | None = await world.database.fetchval(
        "SELECT message FROM alerts WHERE key = 'update-lists' AND closed_at IS NULL"
    )
    return found


@pytest.mark.parametrize("mode", ["manual", "automatic"])
async def test_a_server_without_network_is_one_alert_after_days_and_no_failed_job_each_day(
    world: World, mode: str
) -> None:
    await world.mode(mode)
    world.packages.unreachable = "There is no network."

    alerts = []
    for days in range(5):
        await world.database.execute(
            """UPDATE update_looks SET tried_at = tried_at - interval '25 hours',
                   failing_since = failing_since - interval '25 hours'"""
        )
        assert len(await world.daily()) == 1, days
        alerts.append(await alert(world))
    statuses = await world.database.fetch("SELECT DISTINCT status FROM jobs WHERE kind LIKE 'update.%'")
    told = await world.database.fetchval("SELECT count(*) FROM webhook_events WHERE event = 'job.failed'")
    shown = await world.show()
    opened = await world.database.fetchval("SELECT count(*) FROM alerts WHERE key = 'update-lists'")

    assert ([row["status"] for row in statuses], told) == (["succeeded"], 0)
    assert [each is not None for each in alerts] == [False, False, False, True, True]
    assert "There is no network." in (alerts[-1] or "")
    assert opened == 1
    assert (shown["look_error"], shown["looked_at"]) == ("There is no network.", None)
    assert world.packages.there == {"knot": "3.2-1"}


@pytest.mark.parametrize("end", ["look", "off"])
async def test_the_alert_ends_when_the_lists_are_fetched_or_nobody_wants_them(world: World, end: str) -> None:
    world.packages.unreachable = "There is no network."
    await world.daily()
    await world.database.execute(
        "UPDATE update_looks SET tried_at = now() - interval '5 days', failing_since = now() - interval '5 days'"
    )
    await world.daily()
    before = await alert(world)

    if end == "look":
        world.packages.unreachable = None
        await world.look()
    else:
        await world.mode("off")

    assert before is not None
    assert await alert(world) is None


async def test_one_job_at_a_time_installs(world: World) -> None:
    answers = [await world.sites.root.post("/updates/install") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 409]


async def test_a_core_that_dies_behind_the_installation_leaves_the_next_one_to_tell_of_it(
    panel_database: Database, tmp_path: Path
) -> None:
    job = await queued(panel_database, status="running")
    done = [{"name": "nginx", "installed": "1", "available": "2", "security": True, "held": False}]
    await panel_database.execute("INSERT INTO update_runs (job_id, planned, installed) VALUES ($1, $2, $2)", job, done)

    async with open_panel(panel_database, tmp_path, loops=["jobs"]) as panel:
        root = await panel.administrator()
        ended = (await root.get(f"/jobs/{job}")).json()
        rows = await panel_database.fetch("SELECT body FROM webhook_events WHERE event = 'update.installed'")

    assert (ended["status"], ended["error"]["message"]) == ("failed", "interrupted: core restarted")
    assert [json.loads(bytes(row["body"]))["data"]["packages"] for row in rows] == ["nginx"]


async def test_they_are_administrators_alone(world: World) -> None:
    ada = world.sites.ada
    answers = [await ada.get("/updates"), await ada.post("/updates/install"), await ada.patch("/updates", {})]

    assert {answer.status_code for answer in answers} == {403}


async def test_an_apt_that_does_not_answer_is_told_and_the_page_goes_on(world: World) -> None:
    world.packages.mute = "dpkg was interrupted"
    shown = await world.show()

    assert (shown["updates"], shown["problem"]) == (None, "dpkg was interrupted")


def test_of_what_apt_would_change_versions_and_origins_are_read() -> None:
    found = updates_in(
        "Reading state information...\n"
        "Inst libssl3 [3.0.19-1] (3.0.22-1 Debian-Security:12/oldstable-security [amd64]) []\n"
        "Inst nginx [1.22.1-9] (1.22.1-9+deb12u1 Debian:12.9/stable, Debian-Security:12/stable-security [amd64])\n"
        "Inst knot [3.2.6-1] (3.2.6-2 Debian:12.9/stable [amd64])\n"
        "Inst libnew (1.0-1 Debian:12.9/stable [amd64])\n"
        "Conf nginx (1.22.1-9+deb12u1 Debian:12.9/stable [amd64])\n",
        held={"knot"},
    )

    assert found == [
        PackageUpdate("knot", "3.2.6-1", "3.2.6-2", security=False, held=True),
        PackageUpdate("libssl3", "3.0.19-1", "3.0.22-1", security=True),
        PackageUpdate("nginx", "1.22.1-9", "1.22.1-9+deb12u1", security=True),
    ]


def test_managed_is_what_the_panel_drives_and_is_installed() -> None:
    listed = (
        "ii \tnginx-common\tnginx\t1.22\n"
        "hi \tmariadb-server\tmariadb\t10.11\n"
        "rc \tnginx-light\tnginx\t1.18\n"
        "ii \tbash\tbash\t5.2\n"
        "ii \tphp8.2-fpm\tphp8.2\t8.2\n"
    )

    assert managed(listed) == {
        "nginx-common": ("1.22", False),
        "mariadb-server": ("10.11", True),
        "php8.2-fpm": ("8.2", False),
    }


@pytest.mark.parametrize(
    "install",
    [
        lambda run: DebianPackages().install([NGINX], run),
        lambda run: PhpExtensions().install("8.2", "redis", run),
    ],
    ids=["updates", "extensions"],
)
async def test_another_ones_lock_is_waited_for_and_any_other_failure_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[RunProgram], Awaitable[None]]
) -> None:
    monkeypatch.setattr("svc_webhost.packages._AGAIN_SECONDS", 0.01)
    (tmp_path / "updates").mkdir()
    (tmp_path / "info").mkdir()
    (tmp_path / "status").touch()
    ran: list[str] = []
    with (tmp_path / "lock-frontend").open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)

        async def run(command: Sequence[str], **_: object) -> None:
            ran.append(Path(command[0]).name)
            if ran.count("dpkg") == 3:
                fcntl.lockf(held, fcntl.LOCK_UN)
            if ran[-1] == "apt-get":
                raise unavailable("apt-get ended with exit status 100: E: no such package")
            told = (command[0], "--force-not-root", f"--admindir={tmp_path}", *command[1:])
            ended = await trio.run_process(told, check=False, capture_stdout=True, stderr=subprocess.STDOUT)
            if ended.returncode != 0:
                raise unavailable(ended.stdout.decode().splitlines()[-1])

        with pytest.raises(ServiceError, match="no such package"):
            await install(cast(RunProgram, run))

    assert ran == ["dpkg", "dpkg", "dpkg", "apt-get"]
