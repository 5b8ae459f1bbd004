"""A request that is under way while its site is handed over: who had the site before keeps no way in by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import pytest
import trio

from svc_actors.panel.sites.records import change_record, lock_site
from tests.panel.sites.world import World
from tests.support.certificates import self_signed

HELD: Final = """
SELECT (SELECT array_agg(password_hash) FROM sftp_accounts) AS logins,
       (SELECT sum(wanted) FROM database_users) AS passwords, (SELECT count(*) FROM databases) AS databases,
       (SELECT array_agg(path ORDER BY id) FROM schedules) AS tasks, (SELECT count(*) FROM jobs) AS jobs,
       (SELECT count(*) FROM site_certificates) AS certificates, (SELECT count(*) FROM account_members) AS members,
       (SELECT count(*) FROM site_domains) AS names, (SELECT count(*) FROM backup_schedules) AS backups"""
"""What opens a site, or is done in it from then on."""

REQUESTS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "sftp.create": ("POST", "/sites/{site}/sftp", {"name": "eve", "password": "chosen-by-ada-1"}),
    "sftp.update": ("PATCH", "/sites/{site}/sftp/{login}", {"password": "chosen-by-ada-1"}),
    "database.create": ("POST", "/databases", {"site_id": "{site}", "name": "eve"}),
    "database.export": ("POST", "/databases/{database}/export", {}),
    "database_user.create": ("POST", "/database-users", {"database_id": "{database}", "name": "eve"}),
    "database_user.reset_password": ("POST", "/database-users/{user}/password", {}),
    "database_user.grant": ("POST", "/database-users/{user}/grants", {"database_id": "{database}"}),
    "schedule.create": (
        "POST",
        "/sites/{site}/schedules",
        {"name": "eve", "kind": "python", "path": "private/eve.py", "cron": "* * * * *"},
    ),
    "schedule.update": ("PATCH", "/schedules/{schedule}", {"path": "private/eve.py"}),
    "certificate.upload": ("PUT", "/sites/{site}/ssl", {"certificate": "{certificate}", "key": "{key}"}),
    "domain.add": ("POST", "/sites/{site}/domains", {"name": "eve.example"}),
    "backup.create": ("POST", "/sites/{site}/backups", {}),
    "backup.set_schedule": ("PUT", "/sites/{site}/backups/schedule", {}),
    "file.compress": ("POST", "/sites/{site}/files/compress", {"paths": ["public"], "to": "public/all.zip"}),
    "site.delete": ("DELETE", "/sites/{site}", {"confirm": "a.example"}),
    "member.invite": ("POST", "/members", {"site_id": "{site}", "email": "eve@example.com", "role": "developer"}),
}


async def furnished(world: World, folder: Path) -> dict[str, str]:
    """A site of Ada's, with one of everything: their ids by what they are called in `REQUESTS`."""
    site = await world.create("a.example")
    login = await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"})
    database = await world.ada.post("/databases", {"site_id": site["id"], "name": "shop", "user": "ada"})
    task = {"name": "clean", "kind": "python", "path": "private/clean.py", "cron": "0 3 * * *"}
    schedule = await world.ada.post(f"/sites/{site['id']}/schedules", task)
    assert {login.status_code, database.status_code, schedule.status_code} == {201}, (database.text, schedule.text)
    files = self_signed(folder, ["a.example"])
    return {
        "site": site["id"],
        "login": login.json()["id"],
        "database": database.json()["database"]["id"],
        "user": database.json()["login"]["user"]["id"],
        "schedule": schedule.json()["id"],
        "certificate": files.certificate.read_text(),
        "key": files.key.read_text(),
    }


async def waiting(world: World) -> bool:
    """Whether somebody waits for a row that another holds."""
    return bool(
        await world.panel.database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_that_a_handover_overtakes_finds_no_site(world: World, tmp_path: Path, name: str) -> None:
    ids = await furnished(world, tmp_path)
    bob_id = await world.panel.database.fetchval("SELECT id FROM users WHERE email = 'bob@example.com'")
    before = await world.panel.database.fetchrow(HELD)
    method, path, body = REQUESTS[name]
    filled = {key: value.format(**ids) if isinstance(value, str) else value for key, value in body.items()}
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await world.ada.call(method, path.format(**ids), filled))

    async with trio.open_nursery() as nursery:
        async with world.panel.database.transaction() as tx:
            site = await lock_site(tx, UUID(ids["site"]))
            nursery.start_soon(ask)
            with trio.fail_after(60):
                while not (answers or await waiting(world)):
                    await trio.sleep(0.01)
            await change_record(tx, site, {"owner_id": bob_id})

    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (404, "not_found"), answers[0].text
    assert await world.panel.database.fetchrow(HELD) == before
