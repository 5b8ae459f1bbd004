"""Who did what is written with what was done, announced, and never changed."""

# ruff: noqa: PT012  # what raises is how a block ends

from __future__ import annotations

from uuid import uuid4

import asyncpg
import pytest
import trio

from svc_actors.store import Caller, Database, EventKind, EventLog, Outcome, Via, record
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
        await record(
            transaction,
            OPERATOR,
            target_kind="pool",
            target_id="pool-1",
            target_name="public",
            project_id=None,
            outcome=Outcome.DENIED,
            error_code="forbidden",
            details={"ip": "192.0.2.9"},
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
            await record(transaction, OPERATOR, target_kind="vm", target_id=None, target_name=None, project_id=None)
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
    ],
)
@pytest.mark.parametrize("grant", [False, True])
async def test_rows_cannot_be_changed_or_removed_by_the_service_itself(
    database: Database, change: str, grant: bool
) -> None:
    await write_one(database)
    if grant:
        # As its owner the role can give itself the right back; the triggers refuse all the same.
        await database.execute("GRANT ALL ON audit TO CURRENT_USER")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await database.execute(change)
    assert await database.fetchval("SELECT actor FROM audit") == "operator@example.org"
