"""A page of a long list is what reading the whole list gives at its place, from wherever it was looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from svc.controller.catalogue import controller_registry
from svc.registry.operation import Context
from svc.registry.principal import Principal, Role
from svc_actors.store import Database
from tests.support.callers import ADMINISTRATOR
from tests.support.large import Size, fill, indexes_later

SIZE = Size(machines=2_500, nodes=60, projects=20, tasks=1, audited=2)
"""Machines and tasks of several days, audit entries of two blocks, and nodes of which some are away."""
ALIVE = "SELECT id FROM vms WHERE deleted_at IS NULL"
SHOWN = """(SELECT CASE WHEN state <> 'online' AND vms.status NOT IN ('creating', 'failed', 'deleting')
                THEN 'unknown' ELSE vms.status END FROM nodes WHERE nodes.id = vms.node_id)"""

LISTS = {
    "vm.list -created_at": f"{ALIVE} ORDER BY created_at DESC, id DESC",
    "vm.list created_at": f"{ALIVE} ORDER BY created_at, id",
    "vm.list name": f"{ALIVE} ORDER BY name, id",
    "vm.list status": f"{ALIVE} ORDER BY {SHOWN}, id",
    "vm.list -status": f"{ALIVE} ORDER BY {SHOWN} DESC, id DESC",
    "task.list -created_at": "SELECT id FROM tasks ORDER BY created_at DESC, id DESC",
    "task.list created_at": "SELECT id FROM tasks ORDER BY created_at, id",
    "activity.list -at": "SELECT id FROM audit ORDER BY id DESC",
    "activity.list at": "SELECT id FROM audit ORDER BY id",
}


@pytest.fixture
async def long(database: Database, database_url: str) -> Database:
    """Long lists with gaps: machines deleted, tasks removed and not ended."""
    async with Database.open(database_url.replace("//svc@", "//svc_owner@"), size=1) as owner:
        await owner.execute("ALTER TABLE audit ALTER id RESTART WITH 14000")
        async with indexes_later(owner):
            await fill(owner, SIZE)
        await owner.execute("UPDATE vms SET deleted_at = now() WHERE substr(name, 4)::integer % 7 = 0")
        await owner.execute("UPDATE vms SET status = 'stopping' WHERE status = 'stopped' AND vcpus > 2")
        await owner.execute("DELETE FROM tasks WHERE op = 'vm.start' AND created_at > now() - interval '1 day'")
        await owner.execute("UPDATE tasks SET status = 'queued', ended_at = NULL WHERE status = 'failed'")
    return database


async def test_every_page_is_the_part_of_the_list_at_its_place(long: Database) -> None:
    principal = await administrator(long)
    operations = {entry.operation.name: entry.operation for entry in controller_registry().entries()}

    for name, statement in LISTS.items():
        operation, sort = operations[name.split()[0]], name.split()[1]
        whole = [row["id"] for row in await long.fetch(statement)]
        for size in (200, 37):
            pages = -(-len(whole) // size)
            for number in {1, pages // 3, pages // 2, pages - pages // 4, pages - 1, pages, pages + 1}:
                page = await run(operation, principal, long, page=number, page_size=size, sort=sort)

                assert [item.id for item in page.items] == whole[(number - 1) * size : number * size], (name, number)
                assert (page.total, page.pages) == (len(whole), pages), (name, number)


async def test_machines_of_a_status_and_a_node_are_counted_and_ordered_as_they_are_shown(long: Database) -> None:
    principal = await administrator(long)
    operations = {entry.operation.name: entry.operation for entry in controller_registry().entries()}
    away = await long.fetchval("SELECT id FROM nodes WHERE state <> 'online' ORDER BY name LIMIT 1")

    of_node = await run(operations["vm.list"], principal, long, node=away, sort="-status", page_size=200)
    unknown = await run(operations["vm.list"], principal, long, status="unknown", sort="status", page_size=200)

    shown = [item.status.value for item in of_node.items]
    assert len(shown) == of_node.total > 1
    assert "unknown" in shown
    assert shown == sorted(shown, reverse=True)
    assert {item.status.value for item in unknown.items} == {"unknown"}
    assert unknown.total == await long.fetchval(f"SELECT count(*) FROM ({ALIVE} AND {SHOWN} = 'unknown') AS shown")


async def administrator(database: Database) -> Principal:
    return Principal(
        user_id=await database.fetchval("SELECT id FROM users WHERE role = 'administrator'"),
        email="root@example.org",
        role=Role.ADMINISTRATOR,
        scopes=None,
    )


async def run(operation: Any, principal: Principal, database: Database, **asked: object) -> Any:
    services = SimpleNamespace(database=database)
    context: Context[Any] = Context(principal=principal, caller=ADMINISTRATOR, services=services)
    return await operation.handler(context, operation.request(**asked))
