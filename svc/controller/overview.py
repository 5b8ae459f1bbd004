"""GET /overview: counts at a glance; and GET /search: everything the caller may see with a text in its name."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import trio
from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.machines.finding import holders_of, id_prefix, named, union
from svc.controller.machines.models import GUEST_IP, NOT_DELETED, shown_status
from svc.controller.services import Controller
from svc.identity.alerts import visible_alerts
from svc.identity.person_records import USER_PIECES
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.paging import EVERYTHING, Condition, contains, joined
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import NAME
from svc_actors.controller.nodes.records import SHOWN_STATE
from svc_actors.disk_space import Space
from svc_actors.store import Queryable

operations = Operations[Controller]()

MAX_RESULTS = 20
GIB = 2**30
_MACHINES = f"""
SELECT vms.id, vms.name,
       concat_ws(' ', vms.status, (SELECT {GUEST_IP} FROM allocations WHERE vm_id = vms.id AND is_primary)) AS detail
FROM vms"""


class CapacityUse(Model):
    """What the online nodes may promise to machines (with their overcommit), and what they have promised."""

    vcpus: float
    vcpus_used: int
    memory_mib: float
    memory_used_mib: int
    disk_gib: float
    disk_used_gib: int


class DiskUse(Model):
    """The disk with the controller's data, as df shows it. While `changes_refused` it is nearly full: every change is
    refused as `unavailable`, except signing in and deleting."""

    size_gib: float
    free_gib: float
    used_percent: float
    changes_refused: bool


class Overview(Model):
    """Counts by status of the resources that the caller may see. `tasks`: open ones. `nodes`, `capacity` and `disk` are
    for staff and administrators only."""

    vms: dict[str, int]
    nodes: dict[str, int]
    tasks: dict[str, int]
    alerts: int
    capacity: CapacityUse | None
    disk: DiskUse | None


class ResultKind(StrEnum):
    VM = "vm"
    NODE = "node"
    IMAGE = "image"
    USER = "user"
    TASK = "task"


class SearchRequest(Request):
    q: Annotated[str, Field(min_length=1, max_length=200), NAME]


class SearchResult(Model):
    kind: ResultKind
    id: str
    name: str
    detail: str


@operations.declare(
    "overview.show",
    "Show the counts of everything at a glance",
    Route.get("/overview"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("overview",),
)
async def overview(context: Context[Controller], request: Empty) -> Overview:
    database, principal = context.services.database, context.principal
    own_vms, own_tasks = visible_projects(principal, "vms.project_id"), visible_projects(principal)
    if principal.is_operator:
        sql = f"""SELECT {shown_status("words[1]")} AS word, sum(number)::bigint AS number
                  FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
                  WHERE list = 'vms by node' GROUP BY 1 HAVING sum(number) > 0"""
    else:
        sql = f"""SELECT {shown_status("vms.status")} AS word, count(*) AS number
                  FROM vms LEFT JOIN nodes ON nodes.id = vms.node_id
                  WHERE vms.deleted_at IS NULL AND {own_vms.sql} GROUP BY 1"""
    vms = await _counts(database, sql, own_vms)
    tasks = await _counts(
        database,
        f"""SELECT status AS word, count(*) AS number FROM tasks
            WHERE status IN ('queued', 'running') AND {own_tasks.sql} GROUP BY 1""",
        own_tasks,
    )
    own_alerts = visible_alerts(principal, context.services.realm)
    alerts: int = await database.fetchval(f"SELECT count(*) FROM alerts WHERE {own_alerts.sql}", *own_alerts.args)
    if not principal.is_operator:
        return Overview(vms=vms, nodes={}, tasks=tasks, alerts=alerts, capacity=None, disk=None)
    nodes = await _counts(
        database,
        f"SELECT {SHOWN_STATE} AS word, count(*) AS number FROM nodes WHERE deleted_at IS NULL GROUP BY 1",
        EVERYTHING,
    )
    return Overview(
        vms=vms,
        nodes=nodes,
        tasks=tasks,
        alerts=alerts,
        capacity=await _capacity(database),
        disk=await _disk(context.services),
    )


@operations.declare(
    "search.find",
    "Find machines, nodes, images, people and tasks by name, address or id",
    Route.get("/search"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("search",),
    positional=("q",),
)
async def search(context: Context[Controller], request: SearchRequest) -> list[SearchResult]:
    """Machines first (by name, address or id), then nodes, images, people and tasks: twenty in all."""
    found: list[SearchResult] = []
    for kind, sql, condition in _searches(context.principal, request.q.strip()):
        left = MAX_RESULTS - len(found)
        if left <= 0:
            break
        rows = await context.services.database.fetch(
            f"{sql} WHERE {condition.sql} ORDER BY name, id LIMIT {left}", *condition.args
        )
        found += [
            SearchResult(kind=kind, id=str(row["id"]), name=row["name"], detail=row["detail"] or "") for row in rows
        ]
    return found


def _searches(principal: Principal, q: str) -> list[tuple[ResultKind, str, Condition]]:
    searches = [
        (ResultKind.VM, _MACHINES, _machines(principal, q)),
        (
            ResultKind.IMAGE,
            "SELECT id, name, slug AS detail FROM images",
            joined([Condition("enabled"), contains(q, "name", "slug")]),
        ),
    ]
    if principal.is_operator:
        here = Condition("deleted_at IS NULL")
        nodes = "SELECT id, name, state AS detail FROM nodes"
        searches.insert(1, (ResultKind.NODE, nodes, joined([here, contains(q, "name")])))
        if by_id := id_prefix(q, "id"):
            searches.insert(1, (ResultKind.NODE, nodes, joined([here, by_id])))
    if principal.role is Role.ADMINISTRATOR:
        searches.append(
            (
                ResultKind.USER,
                "SELECT id, email AS name, name AS detail FROM users",
                contains(q, "email", "name", pieces=USER_PIECES),
            )
        )
    if by_id := id_prefix(q, "id"):
        tasks = "SELECT id, op AS name, resource_name AS detail FROM tasks"
        searches.append((ResultKind.TASK, tasks, joined([by_id, visible_projects(principal)])))
    return searches


def _machines(principal: Principal, q: str) -> Condition:
    """At most twenty matches of each kind of search, so that a text which most machines contain costs as little as a
    rare one."""
    own = joined([NOT_DELETED, visible_projects(principal, "vms.project_id")])
    ways = [named(q)]
    if holders := holders_of(q):
        ways.append(Condition(f"vms.id IN ({holders.sql})", holders.args))
    if by_id := id_prefix(q, "vms.id"):
        ways.append(by_id)
    found = []
    for way in ways:
        condition = joined([way, own])
        select = f"SELECT vms.id FROM vms WHERE {condition.sql} ORDER BY vms.name, vms.id LIMIT {MAX_RESULTS}"
        found.append(Condition(select, condition.args))
    ids = union(found)
    return Condition(f"vms.id IN ({ids.sql})", ids.args)


async def _counts(queryable: Queryable, sql: str, own: Condition) -> dict[str, int]:
    rows = await queryable.fetch(sql, *own.args)
    return {row["word"]: row["number"] for row in rows}


async def _disk(services: Controller) -> DiskUse:
    space = await trio.to_thread.run_sync(Space.of, services.config.data_dir)
    return DiskUse(
        size_gib=round(space.size / GIB, 2),
        free_gib=round(space.free / GIB, 2),
        used_percent=round(space.used_percent, 1),
        changes_refused=services.database.disk_full,
    )


async def _capacity(queryable: Queryable) -> CapacityUse:
    row = await queryable.fetchone(
        """SELECT coalesce(sum((capacity->>'cpus')::float8 * cpu_overcommit), 0) AS vcpus,
                       coalesce(sum((capacity->>'memory_mib')::float8 * memory_overcommit), 0) AS memory_mib,
                       coalesce(sum((capacity->>'disk_gib')::float8 * disk_overcommit), 0) AS disk_gib,
                       (SELECT coalesce(sum(promised_vcpus), 0) FROM node_capacity) AS vcpus_used,
                       (SELECT coalesce(sum(promised_memory_mib), 0) FROM node_capacity) AS memory_used_mib,
                       (SELECT coalesce(sum(promised_disk_gib), 0) FROM node_capacity) AS disk_used_gib
                FROM nodes WHERE deleted_at IS NULL AND state = 'online'"""
    )
    return CapacityUse(**dict(row))
