"""A server that was lost comes back on a new one: people, logins, records, and each site as of its newest backup."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from svc_actors.panel.recovery import staged
from svc_actors.store.marks import FILE
from svc_common.errors import unavailable
from tests.support.harness import PASSWORD
from tests.support.lost_server import Hosting, Server
from tests.support.restic import RecordedRestic, failing

DOMAINS = ("ada.example.com", "bob.example.com", "cy.example.com")


async def a_life(server: Server, disk: Path) -> dict[str, Any]:
    """Customers, sites, backups, and a manifest; what is there of it to be compared."""
    await server.target(disk)
    key = await server.key()
    sites: dict[str, UUID] = {}
    tokens: dict[str, str] = {}
    for domain in DOMAINS:
        owner = await server.panel.person(f"owner@{domain}")
        tokens[domain] = await server.panel.token(owner)
        files = {"public/index.html": domain.encode(), "private/data.bin": bytes(range(256)) * len(domain)}
        sites[domain] = await server.site(owner, domain, files)
        await server.done(await server.root.post(f"/sites/{sites[domain]}/backups"))
    await server.done(await server.root.post("/recovery/manifest"))
    return {
        "key": key,
        "sites": sites,
        "tokens": tokens,
        "files": {domain: server.files(await server.number(site)) for domain, site in sites.items()},
        "install_id": (await server.root.get("/server/status")).json()["install_id"],
    }


async def order(server: Server, disk: Path, key: str, **wishes: Any) -> Any:
    target = await server.target(disk)
    return await server.root.post("/recovery/run", {"target": target, "recovery_key": key, "replace": True, **wishes})


async def become(hosting: Hosting, url: str, folder: Path, disk: Path, key: str, **wishes: Any) -> None:
    async with hosting.open(url, folder, "203.0.113.99") as new:
        await new.done(await order(new, disk, key, **wishes))
        assert new.reopen.is_set()


async def test_people_sites_and_their_files_are_back_on_a_new_server(
    hosting: Hosting, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
    shutil.rmtree(tmp_path / "old")
    await become(hosting, new_url, tmp_path / "new", disk, before["key"])
    marks = tmp_path / "new" / FILE
    marks.touch()

    async with hosting.open(new_url, tmp_path / "new", "203.0.113.99") as server:
        state = await server.recovery()
        job = await server.job(state["recovered"]["job_id"])
        state = await server.recovery()
        files = {domain: server.files(await server.number(site)) for domain, site in before["sites"].items()}
        token = server.panel.program(before["tokens"][DOMAINS[0]])
        session = await server.panel.browser().post(
            "/auth/login", {"email": f"owner@{DOMAINS[0]}", "password": PASSWORD}
        )
        own = (await token.get("/sites")).json()["items"]
        status = (await server.root.get("/server/status")).json()
        told = await server.database.fetch("SELECT event FROM webhook_events WHERE event LIKE 'recovery.%'")
        assert job["status"] == "succeeded", [str(step.get("error"))[-300:] for step in job["steps"]]
        again = await server.root.post("/recovery/run", {})
        await server.done(await server.root.post(f"/sites/{before['sites'][DOMAINS[0]]}/backups"))

    assert [step["status"] for step in job["steps"]] == ["succeeded"] * 4
    assert files == before["files"]
    assert [site["domain"] for site in own] == [DOMAINS[0]]
    assert session.status_code < 300, session.text
    assert status["install_id"] == before["install_id"]
    assert [site["status"] for site in state["recovered"]["sites"]] == ["recovered"] * 3
    assert all(site["backup_at"] for site in state["recovered"]["sites"])
    assert [row["event"] for row in told] == ["recovery.completed"]
    assert again.status_code == 409
    assert not (tmp_path / "new" / "recovery" / "staged").exists()
    assert not marks.exists(), "another database was put in place on purpose, and is no step back"


async def test_restic_is_started_for_a_site_as_often_as_its_recovery_needs(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    """Each start takes half a second of a processor, and more where the target is far away: of every site there is."""
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
        repository = await old.database.fetchval(
            "SELECT id FROM backup_repositories WHERE site_id = $1", before["sites"][DOMAINS[0]]
        )
    await become(hosting, new_url, tmp_path / "new", disk, before["key"])
    started: list[tuple[str, str]] = []

    async def record(command: str, location: str) -> None:
        if location.endswith(str(repository)) and command != "unlock":  # Without a lock nothing is started for it.
            started.append((command, "target" if location.startswith(str(disk)) else "here"))

    restic.before = record
    async with hosting.open(new_url, tmp_path / "new") as server:
        job = await server.job((await server.recovery())["recovered"]["job_id"])

    assert job["status"] == "succeeded"
    assert started == [
        ("snapshots", "target"),
        ("init", "here"),
        ("copy", "here"),
        ("snapshots", "here"),
        ("restore", "here"),  # what the backup says of itself, by which the room on the disk is judged
        ("restore", "here"),
    ]


async def test_a_broken_repository_fails_its_step_and_no_other_and_is_tried_again(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
        broken = await old.database.fetchval(
            "SELECT id FROM backup_repositories WHERE site_id = $1", before["sites"][DOMAINS[1]]
        )
    await become(hosting, new_url, tmp_path / "new", disk, before["key"])
    restic.before = failing("copy", at=str(tmp_path / "new" / "backups" / "repositories" / str(broken)))

    async with hosting.open(new_url, tmp_path / "new") as server:
        first = await server.job((await server.recovery())["recovered"]["job_id"])
        refused = await server.root.post(f"/sites/{before['sites'][DOMAINS[1]]}/backups")
        between = (await server.recovery())["recovered"]["sites"]
        restic.before = RecordedRestic().before
        second = await server.done(await server.root.post("/recovery/run", {}))
        files = {domain: server.files(await server.number(site)) for domain, site in before["sites"].items()}

    assert first["status"] == "failed"
    assert [step["status"] for step in first["steps"]] == ["succeeded", "failed", "succeeded", "failed"]
    assert "the disk says no" in first["steps"][1]["error"]["message"]
    assert DOMAINS[1] in first["error"]["message"]
    assert [site["status"] for site in between] == ["recovered", "failed", "recovered"]
    assert refused.status_code == 409
    assert [step["name"] for step in second["steps"]] == [f"site_{1002}_bob_example_com", "report"]
    assert files == before["files"]


async def test_a_defect_that_one_site_meets_fails_its_step_alone(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
        broken = await old.database.fetchval(
            "SELECT id FROM backup_repositories WHERE site_id = $1", before["sites"][DOMAINS[1]]
        )
    await become(hosting, new_url, tmp_path / "new", disk, before["key"])

    async def defect(command: str, location: str) -> None:
        if command == "restore" and location.endswith(str(broken)):
            raise ExceptionGroup("two of it", [KeyError("a"), KeyError("b")])

    restic.before = defect
    async with hosting.open(new_url, tmp_path / "new") as server:
        job = await server.job((await server.recovery())["recovered"]["job_id"])
        restic.before = RecordedRestic().before
        await server.done(await server.root.post("/recovery/run", {}))
        files = {domain: server.files(await server.number(site)) for domain, site in before["sites"].items()}

    assert [step["status"] for step in job["steps"]] == ["succeeded", "failed", "succeeded", "failed"]
    assert "The service failed while doing this" in job["steps"][1]["error"]["message"]
    assert files == before["files"]


async def test_a_backup_that_came_in_part_before_a_core_died_is_fetched_whole(
    hosting: Hosting,
    restic: RecordedRestic,
    panel_database_url: str,
    new_url: str,
    tmp_path: Path,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The backup of a site that was changed meanwhile is two snapshots: its tree, and its manifest."""
    restic.busy = True
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
    await become(hosting, new_url, tmp_path / "new", disk, before["key"])
    whole = RecordedRestic.copy

    async def half(self: RecordedRestic, run: Any, source: Any, target: Any, snapshots: Any) -> None:
        await whole(self, run, source, target, snapshots[:1])
        raise unavailable("the core is gone")

    monkeypatch.setattr(RecordedRestic, "copy", half)
    async with hosting.open(new_url, tmp_path / "new") as server:
        first = await server.job((await server.recovery())["recovered"]["job_id"])
        monkeypatch.setattr(RecordedRestic, "copy", whole)
        await server.done(await server.root.post("/recovery/run", {}))
        held = [sorted(tags) for location in restic.repositories for tags in restic.held(location)]
        files = {domain: server.files(await server.number(site)) for domain, site in before["sites"].items()}
        manifests = [
            sum("manifest" in tags for tags in restic.held(location))
            for location in restic.repositories
            if location.startswith(str(tmp_path / "new"))
        ]

    assert [step["status"] for step in first["steps"]] == ["failed"] * 4
    assert any("manifest" in tags for tags in held)
    assert manifests == [1] * 3
    assert files == before["files"]


async def test_an_order_that_failed_at_its_end_leaves_nothing_to_become(
    hosting: Hosting,
    panel_database_url: str,
    new_url: str,
    tmp_path: Path,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)

    def full(folder: Path) -> None:
        if folder.name == "recovery":  # It has its name already.
            raise OSError(28, "No space left on device")

    async with hosting.open(new_url, tmp_path / "new") as new:
        with monkeypatch.context() as patch:
            patch.setattr(staged, "sync_folder", full)
            job = await new.job((await order(new, disk, before["key"])).json()["id"])
    (tmp_path / "new" / "recovery" / "staged.gone").mkdir()
    async with hosting.open(new_url, tmp_path / "new") as server:
        recovered = (await server.recovery())["recovered"]

    assert job["status"] == "failed"
    assert "No space left" in job["error"]["message"]
    assert recovered is None
    assert list((tmp_path / "new" / "recovery").iterdir()) == []


async def test_discover_shows_servers_manifests_and_repositories_and_changes_nothing(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
        await old.done(await old.root.post("/recovery/manifest"))
    held = {location: dict(snapshots) for location, snapshots in restic.repositories.items()}

    async with hosting.open(new_url, tmp_path / "new") as server:
        target = await server.target(disk)
        without = (await server.root.post("/recovery/discover", {"target": target})).json()
        wanted = {"target": target, "recovery_key": before["key"].lower().replace("-", " ")}
        found = (await server.root.post("/recovery/discover", wanted)).json()
        sites = await server.database.fetchval("SELECT count(*) FROM sites")

    [only] = without["servers"]
    assert without["opened"] is None
    assert only["install_id"] == before["install_id"]
    assert len(only["manifests"]) == 2
    assert found["opened"]["id"] == only["manifests"][0]["id"]
    assert [(site["domain"], site["backups"], site["problem"]) for site in found["opened"]["sites"]] == [
        (domain, 1, None) for domain in DOMAINS
    ]
    assert found["holds"] == ["1 people"]
    assert sites == 0
    assert restic.repositories == held


async def test_a_wrong_key_a_damaged_manifest_and_a_target_that_is_away_change_nothing(
    hosting: Hosting, restic: RecordedRestic, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
    recovery = str(disk / "svc-recovery")
    [snapshot] = restic.repositories[recovery]
    name, whole = restic.trees[snapshot]["file"]

    async with hosting.open(new_url, tmp_path / "new") as server:
        target = await server.target(disk)
        wanted = {"target": target, "recovery_key": before["key"], "replace": True}
        wrong = await server.root.post("/recovery/discover", {"target": target, "recovery_key": "AAAA-" * 8})
        wrong_run = await server.job(
            (await server.root.post("/recovery/run", {**wanted, "recovery_key": "AAAA-" * 8})).json()["id"]
        )
        restic.trees[snapshot]["file"] = (name, whole[:-100])
        damaged = await server.job((await server.root.post("/recovery/run", wanted)).json()["id"])
        restic.trees[snapshot]["file"] = (name, whole)
        not_replaced = await server.root.post("/recovery/run", {**wanted, "replace": False})
        restic.before = failing("snapshots", at=recovery)
        away = await server.root.post("/recovery/run", wanted)
        left = await server.database.fetchval("SELECT count(*) FROM recovery_orders")
        reopened = server.reopen.is_set()

    assert wrong.status_code == 400
    assert "is not the key of this manifest" in wrong.text
    assert wrong_run["status"] == damaged["status"] == "failed"
    assert "is not the key" in wrong_run["error"]["message"]
    assert "cut short" in damaged["error"]["message"]
    assert not_replaced.status_code == 409
    assert "1 people" in not_replaced.text
    assert away.status_code == 503
    assert left == 0
    assert not reopened
    assert not (tmp_path / "new" / "recovery").exists()


async def test_a_server_with_sites_is_never_replaced(
    hosting: Hosting, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        before = await a_life(old, disk)
    async with hosting.open(new_url, tmp_path / "new") as server:
        await server.site(await server.panel.person("eve@example.com"), "eve.example.com", {})
        refused = await order(server, disk, before["key"])

    assert refused.status_code == 409
    assert "sites of its own" in refused.text


async def test_records_that_led_to_the_lost_server_lead_to_the_new_one(
    hosting: Hosting, panel_database_url: str, new_url: str, tmp_path: Path, disk: Path
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        owner = await old.panel.person("ada@example.com")
        await old.site(owner, "ada.example.com", {})
        await old.database.execute("INSERT INTO dns_zones (name, owner_id) VALUES ('ada.example.com', $1)", owner)
        for name, address in (("ada.example.com", "203.0.113.80"), ("mail.ada.example.com", "198.51.100.7")):
            await old.database.execute(
                "INSERT INTO dns_records (zone, name, type, ttl, data) VALUES ('ada.example.com', $1, 'A', 300, $2)",
                name,
                {"type": "A", "address": address},
            )
        await old.target(disk)
        key = await old.key()
        await old.done(await old.root.post("/recovery/manifest"))
    await become(hosting, new_url, tmp_path / "new", disk, key)
    async with hosting.open(new_url, tmp_path / "new", "203.0.113.99") as server:
        rows = await server.database.fetch("SELECT name, data ->> 'address' AS address FROM dns_records ORDER BY name")
        notes = (await server.recovery())["recovered"]["notes"]

    assert [tuple(row.values()) for row in rows] == [
        ("ada.example.com", "203.0.113.99"),
        ("mail.ada.example.com", "198.51.100.7"),
    ]
    assert any("ada.example.com A 203.0.113.80 is 203.0.113.99 now" in note for note in notes)
    assert any(f"data folder was {tmp_path / 'old'}" in note for note in notes)


async def test_a_core_that_dies_anywhere_while_it_becomes_the_lost_server_begins_anew(
    hosting: Hosting,
    panel_database_url: str,
    new_url: str,
    tmp_path: Path,
    disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosting.open(panel_database_url, tmp_path / "old") as old:
        await old.target(disk)
        key = await old.key()
        plan = await old.root.post("/plans", {"name": "small"})
        await old.done(await old.root.post("/recovery/manifest"))
    await become(hosting, new_url, tmp_path / "new", disk, key)

    class KilledError(Exception):
        pass

    def die(*_: object, **__: object) -> None:
        raise KilledError

    for owner, name in (
        (staged, "load"),
        (staged, "prepare_schema"),
        (staged, "write_source"),
        (staged.StagedRecovery, "put_key"),
        (staged.StagedRecovery, "remove"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises((KilledError, ExceptionGroup)):
                async with hosting.open(new_url, tmp_path / "new"):
                    raise AssertionError("somebody was served")
    async with hosting.open(new_url, tmp_path / "new") as server:
        plans = (await server.root.get("/plans")).json()["items"]
        recovered = (await server.recovery())["recovered"]

    assert [each["id"] for each in plans] == [plan.json()["id"]]
    assert recovered["job_id"] is None
    assert not (tmp_path / "new" / "recovery" / "staged").exists()
