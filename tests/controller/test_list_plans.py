"""Every list, in every order and with every filter that it offers, on the first page and a deep one, is planned without
a sequential scan of a table that grows with the provider."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from svc.registry.operation import Operation
from svc.registry.principal import Principal
from svc_actors.store import Database
from svc_actors.store.driver import Record
from tests.support.large import Size, fill, indexes_later
from tests.support.lists import lists, principals, run, sample_ids, variants

LARGE = {
    "vms", "tasks", "task_events", "audit", "event", "allocations", "nics", "traffic_readings", "traffic_months",
    "traffic_decisions", "vm_texts",
}  # fmt: skip
SIZE = Size(machines=5_000, nodes=100, projects=2_500)
DEEP = 50
"""A page in the middle of machines, and far into all longer lists."""
WHOLE = {"traffic.list"}
"""Traffic is in an order that the month's policies make of every machine's readings: it reads the month's rows, one a
machine."""


class Recorder:
    """The database, with what it was asked."""

    disk_full = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    async def fetch(self, sql: str, *args: object, timeout: float = 10) -> list[Record]:
        self.asked.append((sql, args))
        return await self._database.fetch(sql, *args, timeout=timeout)

    async def fetchrow(self, sql: str, *args: object, timeout: float = 10) -> Record | None:
        return next(iter(await self.fetch(sql, *args, timeout=timeout)), None)

    async def fetchone(self, sql: str, *args: object, timeout: float = 10) -> Record:
        return (await self.fetch(sql, *args, timeout=timeout))[0]

    async def fetchval(self, sql: str, *args: object, timeout: float = 10) -> Any:
        row = await self.fetchrow(sql, *args, timeout=timeout)
        return None if row is None else row[0]


@pytest.fixture
async def large(database: Database, database_url: str) -> Database:
    async with Database.open(database_url.replace("//svc@", "//svc_owner@"), size=1) as owner:
        async with indexes_later(owner):
            await fill(owner, SIZE)
        await owner.execute("ANALYZE")
    return database


async def test_no_list_reads_a_large_table_from_end_to_end(large: Database) -> None:
    administrator, customer = await principals(large)
    ids = await sample_ids(large, customer)
    recorder = Recorder(large)
    found = []

    for operation in lists():
        for principal in (administrator, customer):
            if not principal.has_access(operation.access) or operation.name in WHOLE:
                continue
            for request in [request async for request in requests(operation, principal, large, ids)]:
                recorder.asked.clear()
                await run(operation, principal, recorder, request)
                for sql, args in recorder.asked:
                    if scanned := LARGE & {table async for table in sequential_scans(large, sql, args)}:
                        found.append(f"{operation.name} {principal.role} {request}: {', '.join(sorted(scanned))}")

    assert not found, "\n".join(found)


async def requests(
    operation: Operation[Any, Any, Any], principal: Principal, database: Database, ids: dict[str, UUID]
) -> AsyncIterator[Any]:
    """The first page of each variant, and where a list may have it, a deep one."""
    async for variant in variants(operation, principal, database, ids):
        yield operation.request(**variant)
        if "q" not in variant and variant:
            yield operation.request(**variant, page=DEEP if "sort" in variant else 2)


async def sequential_scans(database: Database, sql: str, args: tuple[object, ...]) -> AsyncIterator[str]:
    plan = await database.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *args)
    nodes = list(plan if isinstance(plan, list) else json.loads(plan))
    while nodes:
        node = nodes.pop()
        node = node.get("Plan", node)
        if node["Node Type"] == "Seq Scan":
            yield node["Relation Name"]
        nodes += node.get("Plans", ())
