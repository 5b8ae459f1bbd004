"""A change to the audit by whoever owns the database is noticed, and where; writers wait for nothing."""

from __future__ import annotations

import gzip
import hashlib
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
import trio
from structlog.testing import capture_logs

from svc_actors.store import Database, Target, audit
from svc_actors.store.audit_archive import archive_audit
from svc_actors.store.audit_check import AuditCheckResult, check_audit
from svc_actors.store.audit_seals import AuditSealer, newest_seal
from tests.store.test_audit import OPERATOR, write_one

KEEP = timedelta(days=400)


@pytest.fixture
async def owner(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url.replace("//svc@", "//svc_owner@")) as owner:
        yield owner


async def forge(owner: Database, change: str) -> None:
    """What somebody can do who owns the database."""
    await owner.execute(
        f"""
        ALTER TABLE audit DISABLE TRIGGER USER;
        ALTER TABLE audit_seals DISABLE TRIGGER USER;
        ALTER TABLE audit_exports DISABLE TRIGGER USER;
        GRANT ALL ON audit, audit_seals, audit_exports TO CURRENT_USER;
        {change};
        ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay;
        """
    )


async def sealed(database: Database, rows: int = 10, *, rows_a_seal: int = 4) -> None:
    for _ in range(rows):
        await write_one(database)
    assert await AuditSealer(database, rows_a_seal=rows_a_seal).round() == rows


async def check(database: Database, folder: Path) -> AuditCheckResult:
    return await check_audit(database, folder)


async def problem(database: Database, folder: Path) -> str:
    found = (await check(database, folder)).problem
    assert found is not None, "it was not noticed"
    return found


async def test_what_nobody_changed_is_intact(database: Database, tmp_path: Path) -> None:
    await sealed(database)
    await sealed(database, 3)
    assert await check(database, tmp_path) == AuditCheckResult(4, 13, 0, None, None)
    newest = await newest_seal(database)
    assert newest is not None
    assert (newest.number, newest.first_id, newest.last_id) == (4, 11, 13)


async def test_the_newest_digest_is_logged_where_the_databases_owner_cannot_change_it(database: Database) -> None:
    with capture_logs() as lines:
        await sealed(database, 3)
    newest = await newest_seal(database)
    assert newest is not None
    assert {"event": "audit.sealed", "log_level": "info", "number": 1, "last_id": 3, "rows": 3} | {
        "digest": newest.digest
    } in lines


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE audit SET actor = 'nobody' WHERE id = 6", "seal 2 (rows 5 to 8)"),
        ("UPDATE audit SET at = at + interval '1 microsecond' WHERE id = 6", "seal 2 (rows 5 to 8)"),
        ("UPDATE audit SET details = NULL WHERE id = 6", "seal 2 (rows 5 to 8)"),
        ("DELETE FROM audit WHERE id = 6", "seal 2 (rows 5 to 8) has 1 or more rows missing"),
        ("DELETE FROM audit WHERE id >= 6", "seal 2 (rows 5 to 8) has 3 or more rows missing"),
        ("DELETE FROM audit WHERE id = 10", "seal 3 (rows 9 to 10) has 1 or more rows missing"),
        ("UPDATE audit_seals SET digest = previous_digest || 'x' WHERE number = 2", "seal 2"),
        ("UPDATE audit_seals SET sealed_at = sealed_at - interval '1 day' WHERE number = 2", "seal 2"),
        ("DELETE FROM audit_seals WHERE number = 2", "seal 2 is missing"),
        ("DELETE FROM audit_seals WHERE number = 1", "seal 1 is missing"),
        ("DELETE FROM audit WHERE id BETWEEN 5 AND 8; DELETE FROM audit_seals WHERE number = 2", "seal 2 is missing"),
        (
            "DELETE FROM audit WHERE id BETWEEN 5 AND 8; DELETE FROM audit_seals WHERE number = 2;"
            "UPDATE audit_seals SET number = 2, first_id = 5 WHERE number = 3",
            "seal 2 (rows 5 to 10) does not follow",
        ),
    ],
)
async def test_a_change_is_noticed_and_where(
    database: Database, owner: Database, tmp_path: Path, change: str, told: str
) -> None:
    await sealed(database)
    await forge(owner, change)
    assert told in await problem(database, tmp_path)


async def test_a_row_put_in_between_is_noticed_also_where_a_number_was_free(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    for end in ("COMMIT", "ROLLBACK", "COMMIT"):
        async with database.session() as session:
            await session.execute("BEGIN")
            await session.execute(
                "INSERT INTO audit (actor, role, via, request_id, operation, target_kind, outcome)"
                "VALUES ('a', 'r', 'system', 'q', 'o', 'k', 'ok')"
            )
            await session.execute(end)
    assert await AuditSealer(database).round() == 2
    assert (await check(database, tmp_path)).problem is None

    await forge(
        owner,
        "INSERT INTO audit (id, actor, role, via, request_id, operation, target_kind, outcome)"
        "OVERRIDING SYSTEM VALUE VALUES (2, 'a', 'r', 'system', 'q', 'o', 'k', 'ok')",
    )

    assert "seal 1 (rows 1 to 3) has 1 or more rows too many" in await problem(database, tmp_path)


async def test_a_chain_cut_off_with_its_rows_is_noticed_by_a_digest_kept_elsewhere_alone(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    await sealed(database)
    newest = await newest_seal(database)
    assert newest is not None

    await forge(owner, "DELETE FROM audit WHERE id > 8; DELETE FROM audit_seals WHERE number = 3")

    assert (await check(database, tmp_path)).problem is None
    assert not await database.fetchval("SELECT count(*) FROM audit_seals WHERE digest = $1", newest.digest)


@pytest.mark.parametrize("change", ["UPDATE audit_seals SET digest = ''", "DELETE FROM audit_seals"])
async def test_the_service_itself_changes_no_seal(database: Database, change: str) -> None:
    await sealed(database, 1)
    async with database.session() as session:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute(change)


async def test_a_row_that_is_committed_late_is_sealed_before_what_came_after_it(
    database: Database, tmp_path: Path
) -> None:
    sealer = AuditSealer(database)
    await write_one(database)
    async with database.transaction() as late:
        await audit.record(late, OPERATOR, Target("pool", "late", None))
        await write_one(database)
        assert await sealer.round() == 0, "row 2 may still come"
        assert await sealer.round() == 0
        with trio.fail_after(5):
            await write_one(database)
    async with database.transaction() as later:
        await audit.record(later, OPERATOR, Target("pool", "later", None))
        assert await sealer.round() == 3, "who began to write after the look is not waited for"
    assert await sealer.round() == 2
    assert (await check(database, tmp_path)).rows == 5
    assert (await check(database, tmp_path)).problem is None


async def test_many_writers_some_held_open_and_some_rolled_back_leave_one_whole_chain(
    database: Database, tmp_path: Path
) -> None:
    chance = random.Random(7)
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(12):
            pause, kept = chance.choice([0, 0, 0.001, 0.02]), chance.random() < 0.8
            try:
                async with database.transaction() as transaction:
                    await audit.record(transaction, OPERATOR, Target("pool", "x", None))
                    await trio.sleep(pause)
                    if not kept:
                        raise InterruptedError
                written += 1
            except InterruptedError:
                continue

    async def seal() -> None:
        sealer = AuditSealer(database, rows_a_seal=5)
        while True:
            await sealer.round()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(seal)
        async with trio.open_nursery() as writers:
            for _ in range(6):
                writers.start_soon(write)
        nursery.cancel_scope.cancel()
    await AuditSealer(database, rows_a_seal=5).round()

    checked = await check(database, tmp_path)
    assert (checked.problem, checked.rows) == (None, written)
    assert checked.seals > 2


async def test_a_sealer_that_ends_anywhere_is_gone_on_from(database: Database, tmp_path: Path) -> None:
    for _ in range(60):
        await write_one(database)
    for milliseconds in range(1, 20):
        with trio.move_on_after(milliseconds / 1000):
            await AuditSealer(database, rows_a_seal=2).round()
        assert (await check(database, tmp_path)).problem is None
    await AuditSealer(database, rows_a_seal=2).round()
    assert await check(database, tmp_path) == AuditCheckResult(30, 60, 0, None, None)


async def test_it_is_read_in_parts(database: Database, owner: Database, tmp_path: Path) -> None:
    await sealed(database)
    first = await check_audit(database, tmp_path, seconds=0)
    assert first == AuditCheckResult(1, 4, 0, None, 1)
    second = await check_audit(database, tmp_path, 1, seconds=0)
    assert second == AuditCheckResult(1, 4, 0, None, 2)
    await forge(owner, "UPDATE audit SET actor = 'nobody' WHERE id = 10")
    last = await check_audit(database, tmp_path, 2, seconds=0)
    assert last.problem is not None


async def archived(database: Database, owner: Database, folder: Path) -> Path:
    """Ten rows, sealed in blocks of four, of which the oldest six are in a file alone."""
    for _ in range(10):
        await write_one(database)
    await forge(owner, "UPDATE audit SET at = at - interval '500 days' WHERE id <= 6")
    await owner.execute(
        """
        ALTER TABLE audit ENABLE TRIGGER USER; ALTER TABLE audit_exports ENABLE TRIGGER USER;
        ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay
        """
    )
    assert await archive_audit(database, folder, KEEP) == 0, "what is not sealed stays"
    await AuditSealer(database, rows_a_seal=4).round()
    assert await archive_audit(database, folder, KEEP) == 6
    [file] = folder.glob("*.gz")
    return file


async def test_archived_rows_are_compared_from_their_files(database: Database, owner: Database, tmp_path: Path) -> None:
    await archived(database, owner, tmp_path)
    assert await check(database, tmp_path) == AuditCheckResult(3, 10, 6, None, None)
    second = await check_audit(database, tmp_path, 1)
    assert second == AuditCheckResult(2, 6, 2, None, None), "from the middle of a file on as well"


async def test_an_archive_that_was_changed_is_noticed_also_with_its_recorded_sum(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    file = await archived(database, owner, tmp_path)
    content = gzip.decompress(file.read_bytes()).replace(b"operator@example.org", b"somebody@example.org", 1)
    file.write_bytes(gzip.compress(content))
    assert f"the archive {file.name} was changed" in await problem(database, tmp_path)

    forged = hashlib.sha256(file.read_bytes()).hexdigest()
    await forge(owner, f"UPDATE audit_exports SET sha256 = '{forged}'")
    assert "seal 1 (rows 1 to 4) does not have the digest" in await problem(database, tmp_path)


async def test_an_archive_that_is_gone_cut_off_or_not_recorded_is_noticed(
    database: Database, owner: Database, tmp_path: Path
) -> None:
    file = await archived(database, owner, tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert "was changed" in await problem(database, tmp_path)
    await forge(owner, f"UPDATE audit_exports SET sha256 = '{hashlib.sha256(content[:-20]).hexdigest()}'")
    assert "cannot be read" in await problem(database, tmp_path)
    file.unlink()
    assert "cannot be read" in await problem(database, tmp_path)
    await forge(owner, "DELETE FROM audit_exports")
    assert "seal 1 (rows 1 to 4) has 4 or more rows missing" in await problem(database, tmp_path)
