"""What customers use: counted on the disk and from the logs, kept beside what their plan allows."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from svc_actors.panel.accounts.disk_use import DatabaseSizes, DiskUse
from svc_actors.panel.accounts.traffic import TrafficCount, sums
from svc_actors.panel.databases.sizes import bytes_of_databases
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.databases import EngineKind
from svc_webhost.disk_use import disk_use
from svc_webhost.folders import HostFolders
from tests.panel.sites.world import World, world_of
from tests.support.recorded_databases import RecordedDatabases
from tests.support.site_files import site_folder

MIB = 1024 * 1024


def line_of(time: str, user: str = "-") -> str:
    """Of nginx's log, of a visitor who sends this name."""
    return f'203.0.113.9 - {user} [{time}] "GET / HTTP/1.1" 200 1048576 "-" "x"'


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with world_of(panel_database, tmp_path) as made:
        await made.root.post("/plans", {"name": "small", "disk_mib": 16, "traffic_mib": 1})
        await made.root.post(f"/accounts/{made.ada_id}/plan", {"plan": "small"})
        yield made


async def account(world: World) -> dict[str, Any]:
    found: dict[str, Any] = (await world.ada.get(f"/accounts/{world.ada_id}")).json()
    return found


async def count(world: World, site: dict[str, Any], used: int) -> None:
    """A walk that finds so many bytes."""

    async def measure(folder: Path) -> int:
        return used

    walks = DiskUse(world.panel.database, world.panel.services.config.folders, measure, in_databases(world))
    await walks.count(UUID(site["id"]), SiteAccount(site["number"]))


def in_databases(world: World) -> DatabaseSizes:
    return partial(bytes_of_databases, world.panel.database, world.panel.host.databases)


async def look(world: World) -> None:
    """A round in which no walk is due."""
    folders = world.panel.services.config.folders
    await DiskUse(world.panel.database, folders, disk_use, in_databases(world)).round()


def line(size: int, at: str = "22/Nov/2026:10:00:00 +0000", path: str = "/") -> str:
    return f'192.0.2.1 - - [{at}] "GET {path} HTTP/1.1" 200 {size} "-" "curl"\n'


async def test_over_its_disk_an_account_keeps_its_files_and_gets_no_further_ones(world: World) -> None:
    site, other = await world.create("a.example"), await world.create("b.example")
    site_folder(world.panel.services.config.folders.sites, site["number"])
    await count(world, other, 10 * MIB)
    begin = f"/sites/{site['id']}/files/upload"

    before = await world.ada.post(begin, {"path": "public/a", "size": 7 * MIB})
    await count(world, site, 8 * MIB)
    over = await account(world)
    told = (await world.ada.get("/alerts")).json()["items"]
    written = await world.ada.call(
        "PUT", f"/sites/{site['id']}/files/content", {"path": "public/c", "content": "text", "replace": True}
    )
    copied = await world.ada.post(f"/sites/{site['id']}/files/copy", {"path": "public/a", "to": "public/d"})
    await count(world, site, 1 * MIB)
    afterwards = await account(world)

    assert before.status_code == 409
    assert "small may have 16 MiB" in before.json()["error"]["message"]
    assert (over["used"]["disk_mib"], over["over"]) == (18, ["18 MiB of disk, 16 are allowed"])
    assert "uploads, exports, imports and backups by hand are refused" in told[0]["message"]
    assert (await world.ada.get("/alerts")).json()["items"] == []
    assert (written.status_code, copied.status_code) == (409, 409)
    assert (afterwards["used"]["disk_mib"], afterwards["over"]) == (11, [])


async def test_databases_and_exports_count_and_nothing_more_comes_in_while_they_are_too_much(world: World) -> None:
    site = await world.create("a.example")
    site_folder(world.panel.services.config.folders.sites, site["number"])
    made = await world.ada.post("/databases", {"site_id": site["id"], "name": "shop"})
    assert made.status_code == 201, made.text
    database = made.json()["database"]["id"]
    exported = await world.job_of(world.ada, (await world.ada.post(f"/databases/{database}/export")).json())
    await world.panel.database.execute("UPDATE database_exports SET size = $1", 9 * MIB)
    engine = world.panel.host.databases[EngineKind.MARIADB]
    assert isinstance(engine, RecordedDatabases)
    ((name, _),) = engine.contents.items()
    engine.contents[name] = "x" * (5 * MIB)

    await count(world, site, 3 * MIB)
    over = await account(world)
    alerts = (await world.ada.get("/alerts")).json()["items"]
    refused = {
        path: await world.ada.post(path, body)
        for path, body in {
            f"/databases/{database}/export": {},
            f"/databases/{database}/import": {"export": (await exports(world))[0]},
            f"/sites/{site['id']}/backups": {},
        }.items()
    }
    await world.ada.delete(f"/databases/exports/{(await exports(world))[0]}")
    await count(world, site, 3 * MIB)
    afterwards = await account(world)

    assert exported["status"] == "succeeded"
    assert (over["used"]["disk_mib"], over["over"]) == (17, ["17 MiB of disk, 16 are allowed"])
    assert ["17 MiB of disk are used" in alert["message"] for alert in alerts] == [True]
    assert {path: answer.status_code for path, answer in refused.items()} == dict.fromkeys(refused, 409)
    assert all("may have 16 MiB" in answer.json()["error"]["message"] for answer in refused.values())
    assert (afterwards["used"]["disk_mib"], afterwards["over"]) == (8, [])


async def exports(world: World) -> list[str]:
    found = (await world.ada.get("/databases/exports")).json()
    return [each["id"] for each in (found["items"] if isinstance(found, dict) else found)]


async def test_of_a_site_that_is_deleted_no_alert_is_left(world: World) -> None:
    site = await world.create("a.example")
    await count(world, site, 17 * MIB)
    await look(world)
    before = (await world.root.get("/alerts")).json()["items"]

    deleted = await world.ada.delete(f"/sites/{site['id']}", {"confirm": "a.example", "final_backup": False})
    job = await world.job_of(world.root, deleted.json())
    await look(world)

    assert job["status"] == "succeeded"
    assert ["17 MiB of disk are used" in alert["message"] for alert in before] == [True]
    assert (await world.root.get("/alerts")).json()["items"] == []


async def test_the_limit_of_one_site_is_kept_too(world: World) -> None:
    site = await world.create("a.example", world.bob)
    site_folder(world.panel.services.config.folders.sites, site["number"])
    await world.root.patch(f"/sites/{site['id']}", {"disk_mib": 20})
    await count(world, site, 20 * MIB)

    refused = await world.bob.post(f"/sites/{site['id']}/files/upload", {"path": "public/a", "size": 1})

    assert refused.status_code == 409
    assert "a.example may have 20 MiB" in refused.json()["error"]["message"]


async def test_the_owner_of_a_site_over_its_own_limit_is_told_until_there_is_less(world: World) -> None:
    site = await world.create("a.example", world.bob)
    await world.root.patch(f"/sites/{site['id']}", {"disk_mib": 20})
    await count(world, site, 21 * MIB)

    over = [(await who.get("/alerts")).json()["items"] for who in (world.bob, world.root)]
    await count(world, site, 19 * MIB)
    less = (await world.root.get("/alerts")).json()["items"]

    assert [[alert["message"].partition(":")[0] for alert in alerts] for alerts in over] == [["a.example"]] * 2
    assert less == []


async def test_a_walk_counts_blocks_and_hard_links_once_and_follows_no_link(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "deep").mkdir(parents=True)
    outside.write_bytes(b"x" * 4 * MIB)
    (home / "deep" / "file").write_bytes(b"x" * 2 * MIB)
    (home / "again").hardlink_to(home / "deep" / "file")
    (home / "link").symlink_to(outside)

    found, nothing = await disk_use(home), await disk_use(tmp_path / "no such folder")

    assert found is not None
    assert 2 * MIB <= found < 3 * MIB
    assert nothing is None


async def test_every_line_of_a_log_counts_once_also_when_it_is_rotated(world: World) -> None:
    site = await world.create("a.example")
    folders: HostFolders = world.panel.services.config.folders
    log = folders.site_logs / site["account"] / "access.log"
    log.parent.mkdir(parents=True)
    counting = TrafficCount(world.panel.database, folders)

    log.write_text(line(1000) + line(500, "30/Oct/2026:23:59:59 +0000"))
    await counting.round()
    await counting.round()
    with log.open("a") as more:
        more.write(line(300) + line(200, path="/[22/Nov/1999:10:00:00 +0000]"))
    log.rename(log.with_name("access.log.1"))
    log.write_text(line(70) + "no line of nginx\n")
    await counting.round()

    months = await world.panel.database.fetch("SELECT month, requests, bytes FROM account_traffic ORDER BY month")
    assert [(str(row["month"]), row["requests"], row["bytes"]) for row in months] == [
        ("2026-10-01", 1, 500),
        ("2026-11-01", 4, 1570),
    ]


@pytest.mark.parametrize(
    ("text", "month"),
    [
        (line_of("30/Nov/2026:23:59:59 -0800"), date(2026, 12, 1)),
        (line_of("01/Dec/2026:00:30:00 +0100"), date(2026, 11, 1)),
        (line_of("30/Nov/2026:23:59:59 +0000"), date(2026, 11, 1)),
        (line_of("28/Nov/2026:12:00:00 +0000", "[01/Jan/2020:00:00:00 +0000]"), date(2026, 11, 1)),
        (line_of("28/Nov/2026:12:00:00 +0000", "[01/Jan/2020:"), date(2026, 11, 1)),
        (line_of("31/Feb/2026:12:00:00 +0000"), None),
        (line_of("01/Jan/0001:00:00:00 +1400"), None),
        ("no line of nginx", None),
    ],
)
def test_a_line_counts_for_its_month_in_utc_whatever_a_visitor_calls_himself(text: str, month: date | None) -> None:
    assert sums([text]) == ({} if month is None else {month: (1, 1048576)})


async def test_a_log_that_cannot_be_read_leaves_no_other_site_uncounted(world: World) -> None:
    broken, other = await world.create("a.example"), await world.create("b.example")
    folders: HostFolders = world.panel.services.config.folders
    (folders.site_logs / broken["account"] / "access.log").mkdir(parents=True)
    log = folders.site_logs / other["account"] / "access.log"
    log.parent.mkdir(parents=True)
    log.write_text(line(700))

    await TrafficCount(world.panel.database, folders).round()

    rows = await world.panel.database.fetch("SELECT site_id, bytes FROM site_traffic")
    assert [(str(row["site_id"]), row["bytes"]) for row in rows] == [(other["id"], 700)]


async def test_traffic_stays_counted_when_its_site_is_deleted(world: World) -> None:
    site = await world.create("a.example")
    folders: HostFolders = world.panel.services.config.folders
    log = folders.site_logs / site["account"] / "access.log"
    log.parent.mkdir(parents=True)
    now = await world.panel.database.fetchval("SELECT to_char(now(), 'DD/Mon/YYYY:HH24:MI:SS')")
    log.write_text(line(3 * MIB, f"{now} +0000"))

    await TrafficCount(world.panel.database, folders).round()
    await world.delete(site)

    found = await account(world)
    assert found["used"]["traffic_mib"] == 3
    assert found["over"] == ["3 MiB of traffic this month, 1 are allowed"]


async def test_what_is_told_of_a_site_is_told_to_whoever_it_is_handed_to(world: World) -> None:
    site = await world.create("a.example", world.bob)
    await world.root.patch(f"/sites/{site['id']}", {"disk_mib": 20})
    await count(world, site, 21 * MIB)

    [alert] = (await world.bob.get("/alerts")).json()["items"]
    await world.bob.post(f"/alerts/{alert['id']}/ack")

    handed = await world.root.patch(f"/sites/{site['id']}", {"owner_email": "ada@example.com"})
    told = [(await who.get("/alerts")).json()["items"] for who in (world.bob, world.ada)]

    assert handed.status_code == 200, handed.text
    assert [[alert["message"].partition(":")[0] for alert in alerts] for alerts in told] == [[], ["a.example"]]
    assert told[1][0]["acknowledged_at"] is None
