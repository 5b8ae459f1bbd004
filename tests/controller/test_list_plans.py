"""Every list, in every order and with every filter that it offers, on the first page and a deep one, is planned without
a sequential scan of a table that grows with the provider."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, get_args
from uuid import UUID

import pytest

from svc.controller.catalogue import controller_registry
from svc.registry.operation import Context, Operation
from svc.registry.paging import PageRequest
from svc.registry.principal import Principal, Role
from svc_actors.errors import ServiceError
from svc_actors.store import Caller, Database, Via
from svc_actors.store.driver import Record
from tests.support.large import Size, fill

LARGE = {
    "vms", "tasks", "task_events", "audit", "event", "allocations", "nics", "traffic_readings", "traffic_months",
    "traffic_decisions",
}  # fmt: skip
SIZE = Size(machines=5_000, nodes=100, projects=2_500)
DEEP = 50
"""A page in the middle of machines, and far into all longer lists."""
WHOLE = {"traffic.list", "pool.list"}
"""Traffic is in an order that the month's policies make of every machine's readings: it reads the month's rows, one a
machine. Of pools the planner expects a third of the addresses outside of the range, where there are hardly any."""
WHOLE_ORDERS = {"vm.list": ("status", "-status")}
"""The status that is shown depends on the node's state as well, which no index of machines has."""
CALLER = Caller(
    actor_id=None,
    actor="root@example.org",
    role="administrator",
    via=Via.SESSION,
    impersonation_id=None,
    impersonator_id=None,
    token_id=None,
    address=None,
    request_id="x",
    operation="x",
)


class Recorder:
    """The database, with what it was asked."""

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
        await fill(owner, SIZE)
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
                    if getattr(request, "sort", None) in WHOLE_ORDERS.get(operation.name, ()):
                        continue
                    if scanned := LARGE & {table async for table in sequential_scans(large, sql, args)}:
                        found.append(f"{operation.name} {principal.role} {request}: {', '.join(sorted(scanned))}")

    assert not found, "\n".join(found)


def lists() -> Iterator[Operation[Any, Any, Any]]:
    for entry in controller_registry().entries():
        operation = entry.operation
        if issubclass(operation.request, PageRequest) or operation.name in ("overview.show", "search.find"):
            yield operation


async def run(operation: Operation[Any, Any, Any], principal: Principal, database: Any, request: Any) -> None:
    services = SimpleNamespace(database=database, gateway=SimpleNamespace(heartbeat=lambda node_id: None))
    await operation.handler(Context(principal=principal, caller=CALLER, services=services), request)


async def requests(
    operation: Operation[Any, Any, Any], principal: Principal, database: Database, ids: dict[str, UUID]
) -> AsyncIterator[Any]:
    model = operation.request
    if operation.name == "overview.show":
        yield model()
        return
    if operation.name == "search.find":
        for q in ("vm-777", "10.0.0.77", "user-77", "abcdef12"):
            yield model(q=q)
        return
    of = {"id": ids[operation.subject]} if "id" in model.model_fields else {}
    for sort in await offered_orders(operation, principal, database, of):
        for order in (sort, f"-{sort}"):
            yield model(**of, sort=order)
            yield model(**of, sort=order, page=DEEP)
    for q in ("777", "vm-777", "10.0.0.77"):
        yield model(**of, q=q)
    for name, field in model.model_fields.items():
        for value in values(name, field.annotation, ids):
            yield model(**of, **{name: value})
            yield model(**of, **{name: value}, page=2)


async def offered_orders(
    operation: Operation[Any, Any, Any], principal: Principal, database: Database, of: dict[str, Any]
) -> list[str]:
    """The orders that a list names when it is asked for another."""
    try:
        await run(operation, principal, database, operation.request(**of, sort="no-such-order"))
    except ServiceError as error:
        return error.message.partition("one of ")[2].partition(", with")[0].split(", ")
    raise AssertionError(f"{operation.name} takes any order")


def values(name: str, annotation: Any, ids: dict[str, UUID]) -> list[Any]:
    """What a filter may be asked for."""
    if name in ("id", "page", "page_size", "sort", "q", "period"):
        return []
    kinds = [kind for kind in (annotation, *get_args(annotation)) if inspect.isclass(kind)]
    for kind in kinds:
        if issubclass(kind, StrEnum):
            return list(kind)
        if kind is UUID:
            return [ids[name]]
        if kind is int:
            return [24]
    return ["vm.start"]


async def sample_ids(database: Database, customer: Principal) -> dict[str, Any]:
    """One of each; project and machine are the customer's."""
    of = "SELECT project_id FROM project_members WHERE user_id = $1"
    mine = {
        "person": customer.user_id,
        "user": customer.user_id,
        "project": await database.fetchval(of, customer.user_id),
        "vm": await database.fetchval(f"SELECT id FROM vms WHERE project_id IN ({of}) LIMIT 1", customer.user_id),
    }
    tables = {"node": "nodes", "network": "networks", "pool": "pools", "location": "locations"}
    return mine | {
        name: await database.fetchval(f"SELECT id FROM {table} ORDER BY id DESC LIMIT 1")
        for name, table in tables.items()
    }


async def principals(database: Database) -> tuple[Principal, Principal]:
    administrator = Principal(
        user_id=await database.fetchval("SELECT id FROM users WHERE role = 'administrator'"),
        email="root@example.org",
        role=Role.ADMINISTRATOR,
        scopes=None,
    )
    own = await database.fetchval("SELECT user_id FROM project_members ORDER BY user_id LIMIT 1")
    return administrator, replace(administrator, user_id=own, role=Role.CUSTOMER)


async def sequential_scans(database: Database, sql: str, args: tuple[object, ...]) -> AsyncIterator[str]:
    plan = await database.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *args)
    nodes = list(plan if isinstance(plan, list) else json.loads(plan))
    while nodes:
        node = nodes.pop()
        node = node.get("Plan", node)
        if node["Node Type"] == "Seq Scan":
            yield node["Relation Name"]
        nodes += node.get("Plans", ())
