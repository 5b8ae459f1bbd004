"""A site that is handed over opens to its new owner alone: what the one before may know of it is ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
import trio

from svc_actors.panel.handover import retry_handovers
from svc_actors.store import Database
from svc_webhost.databases import EngineKind, UserName
from svc_webhost.wordpress import WordPressError
from tests.panel.sites.world import World, world_of
from tests.panel.wordpress.blogs import databases_of, made, played
from tests.support.panel import open_panel, recorded_host
from tests.support.panel_sftp import RecordedSftp
from tests.support.panel_sites import nothing
from tests.support.recorded_databases import RecordedDatabases
from tests.support.wordpress import RecordedWordPress


def server(world: World) -> RecordedSftp:
    return cast(RecordedSftp, world.panel.host.sftp)


async def handed_over(world: World, site: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer, and the job that it names, when it has ended."""
    answer = await world.root.patch(f"/sites/{site['id']}", {"owner_email": "bob@example.com"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told, await world.job_of(world.bob, {"id": told["handover"]["job_id"]})


async def database_user(world: World, site: dict[str, Any]) -> UserName:
    created = await world.ada.post("/databases", {"site_id": site["id"], "name": "shop", "engine": "postgresql"})
    user = await world.ada.post("/database-users", {"database_id": created.json()["database"]["id"], "name": "ada"})
    assert user.status_code == 201, user.text
    return UserName(user.json()["user"]["name"])


async def test_logins_and_passwords_of_the_owner_before_open_nothing(world: World) -> None:
    site = await world.create("a.example")
    login = (await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"})).json()["login"]
    engine = cast(RecordedDatabases, world.panel.host.databases[EngineKind.POSTGRESQL])
    user = await database_user(world, site)
    before = engine.accounts[user].verifier

    told, job = await handed_over(world, site)

    assert job["status"] == "succeeded", job
    assert login not in server(world).logins
    assert engine.accounts[user].verifier != before
    assert (told["handover"]["sftp_logins"], told["handover"]["database_users"]) == ([login], [user])
    audited = [row["details"] for row in await world.panel.audit() if row["operation"] == "site.update"]
    assert audited[-1]["ended"] == {"sftp_logins": [login], "database_users": [user]}
    assert (await world.bob.get(f"/sites/{site['id']}/sftp")).json() == []


async def test_a_site_that_keeps_its_owner_keeps_what_opens_it(world: World) -> None:
    site = await world.create("a.example")
    login = (await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"})).json()["login"]

    told = await world.root.patch(f"/sites/{site['id']}", {"owner_email": "ada@example.com", "memory_mib": 64})

    assert told.json()["handover"] is None
    assert login in server(world).logins


async def test_a_wordpress_goes_on_with_other_passwords(world: World) -> None:
    site = await made(world)
    user = UserName(f"{site['account']}_wordpress")
    before = databases_of(world).accounts[user].verifier

    told, job = await handed_over(world, site)

    assert job["status"] == "succeeded", job
    account, renewed = played(world).handed_over[-1]
    assert (account, renewed.email) == (site["account"], "bob@example.com")
    assert databases_of(world).accounts[user].verifier == f"stored:{renewed.database_password}" != before
    assert told["handover"]["database_users"] == []
    described = (await world.bob.get(f"/sites/{site['id']}/wordpress")).json()
    assert described["admin_email"] == "bob@example.com"


async def test_a_handover_that_a_killed_core_left_goes_on(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.panel.compose.DRAIN_SECONDS", 0.0)
    host = recorded_host()
    wordpress = cast(RecordedWordPress, host.wordpress)
    reached = trio.Event()

    async def stop(step: str) -> None:
        if step == "hand_over" and not reached.is_set():
            reached.set()
            await trio.sleep_forever()

    wordpress.before = stop
    async with world_of(panel_database, tmp_path, host=host) as world:
        site = await made(world)
        await world.root.patch(f"/sites/{site['id']}", {"owner_email": "bob@example.com"})
        with trio.fail_after(60):
            await reached.wait()
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        await panel.jobs_ended()

    user = cast(RecordedDatabases, host.databases[EngineKind.MARIADB]).accounts[
        UserName(f"{site['account']}_wordpress")
    ]
    assert user.verifier == f"stored:{wordpress.handed_over[-1][1].database_password}"


async def alerts_of(database: Database) -> list[str]:
    rows = await database.fetch("SELECT message FROM alerts WHERE closed_at IS NULL AND key LIKE 'site-handover:%'")
    return [row["message"] for row in rows]


async def make_due(database: Database) -> None:
    assert await database.change("UPDATE site_handovers SET next_attempt_at = now()") == 1


async def retried(world: World, before: dict[str, Any]) -> list[dict[str, Any]]:
    """The jobs of handovers since the one before, by another round or by the panel's own, when they have ended."""
    await retry_handovers(world.panel.database)
    rows = await world.panel.database.fetch(
        "SELECT id FROM jobs WHERE kind = 'site.hand_over' AND id > $1", before["id"]
    )
    return [await world.job_of(world.root, {"id": row["id"]}) for row in rows]


async def test_a_wordpress_is_renewed_although_nobody_can_be_signed_out(world: World) -> None:
    site = await made(world)
    server(world).refuses = "sshd is away"

    _, job = await handed_over(world, site)
    alerts = await alerts_of(world.panel.database)
    server(world).refuses = None
    await make_due(world.panel.database)
    [again] = await retried(world, job)

    assert (job["status"], again["status"]) == ("failed", "succeeded")
    assert "sshd is away" in alerts[0]
    assert [renewed.email for _, renewed in played(world).handed_over] == ["bob@example.com"], "once, and at once"
    assert await alerts_of(world.panel.database) == []
    assert await retried(world, again) == []


async def test_a_wordpress_that_could_not_be_asked_is_renewed_later(world: World) -> None:
    site = await made(world)
    user = UserName(f"{site['account']}_wordpress")

    async def refuse(step: str) -> None:
        raise WordPressError("it did not answer")

    played(world).before = refuse
    _, job = await handed_over(world, site)
    early = await retried(world, job)
    alerts = await alerts_of(world.panel.database)
    await make_due(world.panel.database)
    [second] = await retried(world, job)
    pause = await world.panel.database.fetchval(
        "SELECT extract(epoch FROM next_attempt_at - ended_at)::integer FROM site_handovers, jobs WHERE jobs.id = $1",
        second["id"],
    )
    played(world).before = lambda step: nothing()
    await make_due(world.panel.database)
    [third] = await retried(world, second)

    assert [job["status"], second["status"], third["status"]] == ["failed", "failed", "succeeded"]
    assert early == [], "it waits"
    assert pause == 60, "and longer after each failure"
    assert site["domain"] in alerts[0]
    [(_, renewed)] = played(world).handed_over
    assert databases_of(world).accounts[user].verifier == f"stored:{renewed.database_password}"
    assert await alerts_of(world.panel.database) == []


async def test_a_wordpress_that_cannot_be_renewed_keeps_the_password_that_its_new_owner_sets(world: World) -> None:
    site = await made(world)
    name = UserName(f"{site['account']}_wordpress")

    async def refuse(step: str) -> None:
        raise WordPressError("wp-config.php does not define DB_PASSWORD as a string")

    def verifier() -> str:
        return databases_of(world).accounts[name].verifier

    before = verifier()
    played(world).before = refuse
    _, job = await handed_over(world, site)
    ended = verifier()
    await make_due(world.panel.database)
    [second] = await retried(world, job)
    unchanged = verifier()
    [user] = (await world.bob.get(f"/database-users?site={site['id']}")).json()["items"]
    reset = (await world.bob.post(f"/database-users/{user['id']}/password")).json()
    await make_due(world.panel.database)
    [third] = await retried(world, second)
    played(world).before = lambda step: nothing()
    await make_due(world.panel.database)
    [fourth] = await retried(world, third)

    assert [each["status"] for each in (job, second, third, fourth)] == ["failed"] * 3 + ["succeeded"]
    assert ended != before
    assert unchanged == ended, "the site was repaired by hand with it, perhaps"
    assert verifier() == f"stored:{reset['password']}"
    assert "was left as it is" in third["error"]["message"]
    assert [renewed.database_password for _, renewed in played(world).handed_over] == [None]


async def test_a_handover_that_failed_is_tried_again_by_the_next_core(panel_database: Database, tmp_path: Path) -> None:
    host = recorded_host()
    wordpress = cast(RecordedWordPress, host.wordpress)
    async with world_of(panel_database, tmp_path, host=host) as world:
        site = await made(world)
        cast(RecordedSftp, host.sftp).refuses = "sshd is away"
        await handed_over(world, site)
    await make_due(panel_database)
    cast(RecordedSftp, host.sftp).refuses = None
    async with open_panel(panel_database, tmp_path, host, loops=["jobs", "web server"]) as panel:
        await panel.step("handovers of sites")
        await panel.jobs_ended()

    assert await alerts_of(panel_database) == []
    assert len(wordpress.handed_over) == 1


async def test_one_that_is_ordered_while_another_is_pending_is_for_its_own_owner(world: World) -> None:
    site = await made(world)
    server(world).refuses = "sshd is away"
    await handed_over(world, site)

    told = await world.root.patch(f"/sites/{site['id']}", {"owner_email": "ada@example.com"})
    await world.job_of(world.root, {"id": told.json()["handover"]["job_id"]})

    assert [renewed.email for _, renewed in played(world).handed_over] == ["bob@example.com", "ada@example.com"]


async def test_what_is_queued_in_a_site_becomes_its_new_owners_and_what_has_ended_stays(world: World) -> None:
    site = await made(world)
    [creation] = (await world.ada.get("/jobs")).json()["items"]
    reached, go_on = trio.Event(), trio.Event()

    async def hold(step: str) -> None:
        reached.set()
        await go_on.wait()

    played(world).before = hold
    await world.root.patch(f"/sites/{site['id']}", {"owner_email": "bob@example.com"})
    with trio.fail_after(60):
        await reached.wait()
    queued = (await world.bob.post(f"/sites/{site['id']}/backups", {})).json()

    await world.root.patch(f"/sites/{site['id']}", {"owner_email": "ada@example.com"})
    seen = {
        name: [(await client.get(f"/jobs/{job['id']}/log")).status_code for job in (creation, queued)]
        for name, client in {"ada": world.ada, "bob": world.bob}.items()
    }
    go_on.set()

    assert seen == {"ada": [200, 200], "bob": [404, 404]}


async def test_jobs_of_the_owner_before_and_of_the_server_are_no_members_to_see(world: World) -> None:
    site = await world.create("a.example")
    before, servers = [await ended_job(world, site, owner) for owner in (world.ada_id, None)]
    await handed_over(world, site)
    person = await world.panel.person("eve@example.com", "member")
    await world.panel.database.execute(
        """INSERT INTO account_members (account_id, user_id, site_id, role, invited_by, accepted_at)
           SELECT id, $1, $2, 'manager', 'bob@example.com', now() FROM users WHERE email = 'bob@example.com'""",
        person,
        UUID(site["id"]),
    )
    eve = world.panel.program(await world.panel.token(person))

    seen = [job["id"] for job in (await eve.get("/jobs")).json()["items"]]
    answers = [(await eve.get(f"/jobs/{job_id}")).status_code for job_id in (before, servers)]

    assert len(seen) == 1, "the handover's own, which is Bob's"
    assert not {before, servers} & {*seen}
    assert answers == [404, 404]


async def ended_job(world: World, site: dict[str, Any], owner_id: UUID | None) -> int:
    job: int = await world.panel.database.fetchval(
        """INSERT INTO jobs (kind, title, class, site_id, owner_id, status, started_at, ended_at)
           VALUES ('backup.create', 'Back up a.example', 'backups', $1, $2, 'succeeded', now(), now()) RETURNING id""",
        UUID(site["id"]),
        owner_id,
    )
    return job
