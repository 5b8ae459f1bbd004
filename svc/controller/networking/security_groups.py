"""Security groups: firewall rules for machines, and which machines are in which groups.

A customer has the groups of their own projects, and may use the groups that administrators offer to all projects. A
change is answered as soon as it is recorded. The hosts of the group's machines apply it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from svc.controller.access import visible_projects
from svc.controller.machines.models import visible_machine
from svc.controller.networking.machine_networking import MachineNetworking, networking_of
from svc.controller.networking.security_group_models import (
    GroupMachine,
    MachineGroupsRequest,
    RuleCreateRequest,
    RuleRequest,
    SecurityGroup,
    SecurityGroupCreateRequest,
    SecurityGroupList,
    SecurityGroupRequest,
    SecurityGroupRule,
)
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import EVERYTHING, Condition, Nullable, Page, contains, equals, joined, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc_actors.controller.machines.records import announce_machine
from svc_actors.controller.networking.security_groups import (
    add_rule,
    create_group,
    remove_group,
    remove_rule,
    set_groups,
)
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_common.errors import forbidden, not_found, wrong_field

operations = Operations[Controller]()

_SELECT = """
SELECT g.*, p.name AS project_name
FROM security_groups AS g LEFT JOIN projects AS p ON p.id = g.project_id"""

_MACHINES = "security_group_machines AS m JOIN vms AS v ON v.id = m.vm_id"
_MACHINES_NAMED = 200


@operations.declare(
    "security_group.list",
    "List security groups with their rules",
    Route.get("/security-groups"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "name",
        "project=project_name",
        "machines=machine_count",
        "ingress=default_ingress",
        "egress=default_egress",
        "description",
    ),
)
async def list_groups(context: Context[Controller], request: SecurityGroupList) -> Page[SecurityGroup]:
    database, principal = context.services.database, context.principal
    rows, total = await paginate(
        database,
        select=_SELECT,
        source="security_groups AS g LEFT JOIN projects AS p ON p.id = g.project_id",
        where=[
            _visible(principal),
            equals("g.project_id", request.project),
            contains(request.q, "g.name", "g.description"),
        ],
        sortable={"name": "g.name", "created_at": "g.created_at", "project": Nullable("p.name")},
        default_sort="name",
        request=request,
        tie="g.id",
    )
    return Page[SecurityGroup].of(await _shown(database, principal, rows), total, request)


@operations.declare(
    "security_group.show",
    "Show a security group with its rules",
    Route.get("/security-groups/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_group(context: Context[Controller], request: SecurityGroupRequest) -> SecurityGroup:
    return await _show(context.services.database, context.principal, request.id)


@operations.declare(
    "security_group.create",
    "Create a security group",
    Route.post("/security-groups", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("name",),
)
async def create(context: Context[Controller], request: SecurityGroupCreateRequest) -> SecurityGroup:
    principal = context.principal

    async def work(tx: Transaction) -> SecurityGroup:
        group = await create_group(
            tx,
            name=request.name,
            description=request.description,
            project_id=await _project(tx, principal, request.project_id),
            default_ingress=request.default_ingress,
            default_egress=request.default_egress,
        )
        details = {
            "default_ingress": request.default_ingress.value,
            "default_egress": request.default_egress.value,
        }
        await audit.record(tx, context.caller, _target(group), details)
        return await _show(tx, principal, group["id"])

    return await context.services.database.transact(work)


@operations.declare(
    "security_group.delete",
    "Delete a security group that no machine uses",
    Route.delete("/security-groups/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Controller], request: SecurityGroupRequest) -> None:

    async def work(tx: Transaction) -> None:
        await _changeable(tx, context.principal, request.id)
        await audit.record(tx, context.caller, _target(await remove_group(tx, request.id)))

    await context.services.database.transact(work)


@operations.declare(
    "security_group.add_rule",
    "Add a rule to a security group, for every machine in it",
    Route.post("/security-groups/{id}/rules", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "direction", "protocol"),
)
async def create_rule(context: Context[Controller], request: RuleCreateRequest) -> SecurityGroupRule:

    async def work(tx: Transaction) -> SecurityGroupRule:
        group = await _changeable(tx, context.principal, request.id)
        rule = _rule(await add_rule(tx, request.id, request.rule(), note=request.note))
        await audit.record(tx, context.caller, _target(group), {"rule": _told(rule)})
        return rule

    return await context.services.database.transact(work)


@operations.declare(
    "security_group.remove_rule",
    "Remove a rule from a security group, for every machine in it",
    Route.delete("/security-groups/{id}/rules/{rid}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_rule(context: Context[Controller], request: RuleRequest) -> None:

    async def work(tx: Transaction) -> None:
        group = await _changeable(tx, context.principal, request.id)
        rule = _rule(await remove_rule(tx, request.id, request.rid))
        await audit.record(tx, context.caller, _target(group), {"rule": _told(rule)})

    await context.services.database.transact(work)


@operations.declare(
    "vm.security_groups",
    "Set the security groups of a machine",
    Route.put("/vms/{id}/security-groups"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def set_machine_groups(context: Context[Controller], request: MachineGroupsRequest) -> MachineNetworking:

    async def work(tx: Transaction) -> MachineNetworking:
        machine = await visible_machine(tx, context.principal, request.id)
        groups = await set_groups(tx, request.id, request.group_ids)
        await audit.record(
            tx,
            context.caller,
            Target("vm", request.id, machine["name"], machine["project_id"]),
            {"groups": sorted(group["name"] for group in groups)},
        )
        await announce_machine(tx, request.id)
        return await networking_of(tx, context.principal, request.id)

    return await context.services.database.transact(work)


def _visible(principal: Principal) -> Condition:
    own = visible_projects(principal, "g.project_id")
    return own if own is EVERYTHING else Condition(f"g.project_id IS NULL OR {own.sql}", own.args)


async def _visible_group(queryable: Queryable, principal: Principal, group_id: UUID) -> Record:
    condition = joined([Condition("g.id = $1", (group_id,)), _visible(principal)])
    row = await queryable.fetchrow(f"{_SELECT} WHERE {condition.sql}", *condition.args)
    if row is None:
        raise not_found("There is no such security group.")
    return row


async def _changeable(queryable: Queryable, principal: Principal, group_id: UUID) -> Record:
    row = await _visible_group(queryable, principal, group_id)
    if row["project_id"] is None and principal.role is not Role.ADMINISTRATOR:
        raise forbidden(
            "This security group is offered to all projects; only administrators change it.",
            hint="Make a group of your own: a machine may be in several.",
        )
    return row


async def _project(queryable: Queryable, principal: Principal, project_id: UUID | None) -> UUID | None:
    if project_id is None and principal.role is Role.ADMINISTRATOR:
        return None
    own = visible_projects(principal, "projects.id")
    condition = joined([own, equals("projects.id", project_id)])
    rows = await queryable.fetch(f"SELECT id FROM projects WHERE {condition.sql} LIMIT 2", *condition.args)
    if not rows and project_id is not None:
        raise not_found("There is no such project.")
    if len(rows) != 1:
        raise wrong_field("project_id", "name the project of the security group")
    only: UUID = rows[0]["id"]
    return only


async def _show(queryable: Queryable, principal: Principal, group_id: UUID) -> SecurityGroup:
    [group] = await _shown(queryable, principal, [await _visible_group(queryable, principal, group_id)])
    condition = _machines_in([group_id], principal)
    rows = await queryable.fetch(
        f"SELECT v.id, v.name FROM {_MACHINES} WHERE {condition.sql} ORDER BY v.name, v.id LIMIT {_MACHINES_NAMED}",
        *condition.args,
    )
    return group.model_copy(update={"machines": [GroupMachine(**dict(row)) for row in rows]})


async def _shown(queryable: Queryable, principal: Principal, rows: Sequence[Record]) -> list[SecurityGroup]:
    """The groups with their rules, oldest first, each with the number of its machines that the caller sees."""
    ids = [row["id"] for row in rows]
    rules: dict[UUID, list[SecurityGroupRule]] = {group_id: [] for group_id in ids}
    for row in await queryable.fetch(
        "SELECT * FROM security_group_rules WHERE group_id = ANY($1::uuid[]) ORDER BY created_at, id", ids
    ):
        rules[row["group_id"]].append(_rule(row))
    condition = _machines_in(ids, principal)
    counted = await queryable.fetch(
        f"SELECT m.group_id, count(*) AS machines FROM {_MACHINES} WHERE {condition.sql} GROUP BY m.group_id",
        *condition.args,
    )
    count = {row["group_id"]: row["machines"] for row in counted}
    return [
        SecurityGroup(**dict(row), rules=rules[row["id"]], machine_count=count.get(row["id"], 0), machines=None)
        for row in rows
    ]


def _machines_in(group_ids: Sequence[UUID], principal: Principal) -> Condition:
    return joined(
        [
            Condition("m.group_id = ANY($1::uuid[]) AND v.deleted_at IS NULL", (group_ids,)),
            visible_projects(principal, "v.project_id"),
        ]
    )


def _rule(row: Record) -> SecurityGroupRule:
    values = {name: value for name, value in row.items() if name != "group_id"}
    return SecurityGroupRule(**values | {"cidr": None if row["cidr"] is None else str(row["cidr"])})


def _told(rule: SecurityGroupRule) -> dict[str, Any]:
    """The rule for the audit, with only the fields that were given."""
    return rule.model_dump(mode="json", exclude={"created_at"}, exclude_none=True)


def _target(group: Record) -> Target:
    return Target("security_group", group["id"], group["name"], group["project_id"])
