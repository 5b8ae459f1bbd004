"""Numbers of lists that are kept instead of counted: exact at every moment, and corrected where something passed them
by."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from svc_actors.store import Database, Queryable
from svc_actors.store.counts import fold, recount
from tests.support.large import Size, fill

VIEWS = ("audit_numbers", "vm_numbers", "task_numbers", "address_numbers", "day_numbers")
SMALL = Size(machines=60, nodes=3, projects=4)


async def kept(database: Queryable) -> dict[tuple[str, UUID | None, tuple[str, ...]], int]:
    rows = await database.fetch("SELECT list, scope, words, sum(number) AS number FROM list_numbers GROUP BY 1, 2, 3")
    return {(row["list"], row["scope"], tuple(row["words"])): int(row["number"]) for row in rows if row["number"]}


async def counted(database: Queryable) -> dict[tuple[str, UUID | None, tuple[str, ...]], int]:
    rows = await database.fetch(" UNION ALL ".join(f"SELECT list, scope, words, number FROM {view}" for view in VIEWS))
    return {(row["list"], row["scope"], tuple(row["words"])): row["number"] for row in rows if row["number"]}


async def test_a_number_is_what_counting_gives_whatever_was_changed(database: Database) -> None:
    await fill(database, SMALL)

    await database.execute("UPDATE vms SET status = 'stopping' WHERE status = 'running' AND vcpus = 2")
    await database.execute("UPDATE vms SET deleted_at = now() WHERE vcpus = 3")
    await database.execute("UPDATE vms SET node_id = NULL WHERE status = 'failed'")
    await database.execute("UPDATE allocations SET state = 'releasing', release_id = 1 WHERE slot < 20")
    await database.execute("DELETE FROM allocations WHERE slot < 10")
    await database.execute("UPDATE tasks SET status = 'queued', ended_at = NULL WHERE status = 'failed'")
    await database.execute("DELETE FROM tasks WHERE op = 'vm.start'")

    assert await kept(database) == await counted(database)


async def test_folding_changes_no_number_and_leaves_nothing_to_add(database: Database) -> None:
    await fill(database, SMALL)
    await database.execute("UPDATE vms SET status = 'stopping' WHERE vcpus = 2")
    before = await kept(database)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(fold, database)

    assert await kept(database) == before
    assert await database.fetchval("SELECT count(*) FROM list_changes") == 0


async def test_a_change_that_is_rolled_back_is_not_counted(database: Database) -> None:
    await fill(database, SMALL)
    before = await kept(database)

    async def abandoned() -> None:
        async with database.transaction() as tx:
            await tx.execute("UPDATE vms SET deleted_at = now()")
            assert await kept(tx) == await counted(tx) != before
            raise LookupError

    with pytest.raises(LookupError):
        await abandoned()

    assert await kept(database) == before


async def test_a_number_that_is_wrong_is_corrected(database: Database) -> None:
    await fill(database, SMALL)
    await database.execute("UPDATE list_counts SET number = number + 7 WHERE list = 'vms by node'")
    assert await kept(database) != await counted(database)

    assert await recount(database, VIEWS) > 0

    assert await kept(database) == await counted(database)
    assert await recount(database, VIEWS) == 0
