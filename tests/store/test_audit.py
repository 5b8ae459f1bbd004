"""Who did what is written with what was done, announced, and never changed."""

# ruff: noqa: PT012  # what raises is how a block ends

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
import trio

from svc_actors.store import Caller, Database, EventKind, EventLog, Outcome, Target, Via, audit
from svc_actors.store.audit_archive import archive_audit
from svc_actors.store.audit_seals import AuditSealer
from tests.support.postgres_server import PATIENCE

OPERATOR = Caller(
    actor_id=uuid4(),
    actor="operator@example.org",
    role="administrator",
    via=Via.TOKEN,
    impersonation_id=None,
    impersonator_id=None,
    token_id=uuid4(),
    address="192.0.2.7",
    request_id="req-1",
    operation="pool.force_free",
)


async def write_one(database: Database) -> None:
    async with database.transaction() as transaction:
        await audit.record(
            transaction,
            OPERATOR,
            Target("pool", "pool-1", "public"),
            {"ip": "192.0.2.9"},
            outcome=Outcome.DENIED,
            error_code="forbidden",
        )


async def test_a_row_says_who_did_what_to_what_and_is_announced(database: Database) -> None:
    log = EventLog(database)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        async with log.subscribe(None) as subscription:
            await write_one(database)
            with trio.fail_after(PATIENCE):
                event = await anext(subscription)
        nursery.cancel_scope.cancel()
    row = await database.fetchrow("SELECT * FROM audit")
    assert row is not None
    assert (row["actor"], row["actor_id"], row["via"]) == ("operator@example.org", OPERATOR.actor_id, "token")
    assert (row["operation"], row["target_kind"], row["target_id"]) == ("pool.force_free", "pool", "pool-1")
    assert (row["outcome"], row["error_code"], row["details"]) == ("denied", "forbidden", {"ip": "192.0.2.9"})
    assert (event.kind, event.subject, event.administrators_only) == (EventKind.ACTIVITY, "pool-1", True)
    assert event.payload["id"] == row["id"]


async def test_nothing_is_recorded_for_what_was_rolled_back(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as transaction:
            await audit.record(transaction, OPERATOR, Target("vm", None, None))
            raise ZeroDivisionError
    assert await database.fetchval("SELECT count(*) FROM audit") == 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit SET actor = 'nobody'",
        "DELETE FROM audit",
        "TRUNCATE audit",
        "TRUNCATE audit CASCADE",
        "INSERT INTO audit OVERRIDING SYSTEM VALUE SELECT * FROM audit ON CONFLICT (id) DO UPDATE SET actor = 'nobody'",
        "ALTER TABLE audit DISABLE TRIGGER ALL",
        "ALTER TABLE audit DISABLE TRIGGER audit_rows_stay",
        "DROP TRIGGER audit_rows_stay ON audit",
        "DROP TABLE audit",
        "ALTER TABLE audit OWNER TO svc",
        "CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
        "SET ROLE svc_owner",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION svc_owner",
        "SET session_replication_role = replica",
        "UPDATE audit_exports SET last_id = 9999999",
        "DELETE FROM schema_migration",
    ],
)
async def test_rows_cannot_be_changed_or_removed_by_the_service_itself(database: Database, change: str) -> None:
    await write_one(database)

    async with database.session() as session:
        # Without a right that can be handed on this gives nothing, or is refused as well.
        with suppress(asyncpg.InsufficientPrivilegeError):
            await session.execute("GRANT ALL ON audit TO CURRENT_USER")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute(change)

    assert await database.fetchval("SELECT actor FROM audit") == "operator@example.org"


async def grow_old(owner: Database, days: int, upto: int) -> None:
    """Make rows older than they are, as only the owner of the table could."""
    await owner.execute(
        f"""
        ALTER TABLE audit DISABLE TRIGGER audit_rows_stay;
        GRANT UPDATE ON audit TO CURRENT_USER;
        UPDATE audit SET at = at - interval '{days} days' WHERE id <= {upto};
        ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay;
        """
    )


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url.replace("//svc@", "//svc_owner@")) as owner:
        yield owner


async def test_old_rows_are_in_a_file_before_they_leave_the_table(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    for _ in range(25):
        await write_one(database)
    await grow_old(owner, 500, upto=20)
    await AuditSealer(database).round()

    removed = await archive_audit(database, tmp_path / "audit", timedelta(days=400), rows_a_file=8)

    assert removed == 20
    assert [row["id"] for row in await database.fetch("SELECT id FROM audit ORDER BY id")] == list(range(21, 26))
    lines = []
    for export in await database.fetch("SELECT * FROM audit_exports ORDER BY first_id"):
        content = (tmp_path / "audit" / export["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == export["sha256"]
        lines += gzip.decompress(content).decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(1, 21))
    assert json.loads(lines[0])["details"] == {"ip": "192.0.2.9"}
    assert await archive_audit(database, tmp_path / "audit", timedelta(days=400)) == 0


async def test_rows_that_were_not_exported_or_are_young_stay_whatever_is_asked(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    for _ in range(4):
        await write_one(database)
    await grow_old(owner, 500, upto=2)

    assert await database.fetchval("SELECT remove_exported_audit(interval '0', 1, 1000)") == 0
    await database.execute("INSERT INTO audit_exports (first_id, last_id, rows, file, sha256) VALUES (1, 4, 4, '', '')")
    assert await database.fetchval("SELECT remove_exported_audit(interval '0', 1, 1000)") == 2

    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await owner.execute("DELETE FROM audit WHERE id = 3")
    assert await database.fetchval("SELECT count(*) FROM audit") == 2
