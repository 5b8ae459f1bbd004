"""GET /audit/verify and /audit/export of the controller: for administrators alone, in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc.controller.config import ControllerConfig
from svc.service.controller.services import open_services
from svc_actors.store import Database
from svc_actors.store.audit_seals import AuditSealer, newest_seal
from tests.store.test_audit import write_one
from tests.support.harness import CheapPasswords
from tests.support.identity import IdentityHarness, open_identity
from tests.support.postgres_server import until


@pytest.fixture
async def house(database: Database, tmp_path: Path) -> AsyncIterator[IdentityHarness]:
    config = ControllerConfig(data_dir=tmp_path, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=()) as services,
        open_identity(database, services=services) as world,
    ):
        yield world


async def test_an_administrator_reads_whether_the_audit_is_whole(house: IdentityHarness) -> None:
    root = house.program(await house.token(await house.person("root@example.org", "administrator")))
    await write_one(house.database)

    before = (await root.get("/audit/verify")).json()
    await AuditSealer(house.database).round()
    after = (await root.get("/audit/verify")).json()
    lost = (await root.get("/audit/verify?after=7")).json()

    assert (before["problem"], before["seals"], before["newest_digest"]) == (None, 0, None)
    assert before["unsealed_rows"] >= 1
    assert (after["problem"], after["seals"], after["unsealed_rows"]) == (None, 1, 0)
    assert len(after["newest_digest"]) == 64
    assert lost["problem"] == "there is no seal 7"


async def test_a_running_service_seals_by_itself(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc.service.identity_loops.SEAL_SECONDS", 0.05)
    config = ControllerConfig(data_dir=tmp_path, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with open_services(config, database, enabled_loops=["sealing the audit"]):
        await write_one(database)

        async def sealed() -> bool:
            newest = await newest_seal(database)
            return newest is not None and newest.last_id == await database.fetchval("SELECT max(id) FROM audit")

        await until(sealed)


async def test_staff_and_customers_do_not(house: IdentityHarness) -> None:
    for role in ("staff", "customer"):
        program = house.program(await house.token(await house.person(f"{role}@example.org", role)))
        assert (await program.get("/audit/verify")).status_code == 403
        assert (await program.get("/audit/export")).status_code == 403


async def test_an_administrator_exports_it_in_parts_the_oldest_first(house: IdentityHarness) -> None:
    root = house.program(await house.token(await house.person("root@example.org", "administrator")))
    for name in ("one", "two", "three"):
        assert (await root.post("/projects", {"name": name})).status_code == 201

    first = (await root.get("/audit/export?operation=project.create&limit=2")).json()
    rest = (await root.get(f"/audit/export?operation=project.create&limit=2&after={first['next_after']}")).json()

    told = [entry["target_name"] for entry in first["entries"] + rest["entries"]]
    assert told == ["one", "two", "three"]
    assert rest["next_after"] is None
    assert (await root.get("/audit/export?outcome=denied")).json() == {"entries": [], "next_after": None}
