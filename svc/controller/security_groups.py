"""Security groups: rules about machines' own traffic, and which machines are in which groups.

A customer has the groups of their own projects, and may use those that administrators offer to all projects. A change
is answered as soon as it is recorded; the hosts of the machines in the group follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, PlainValidator

from svc.controller.access import visible_projects
from svc.controller.fields import Name, Text
from svc.controller.machine_models import visible_machine
from svc.controller.machine_networking import MachineNetworking, networking_of
from svc.controller.services import Controller
from svc.registry.operation import Command, Context, Method, Model, Operation, Request, Route
from svc.registry.paging import EVERYTHING, Condition, Page, PageRequest, contains, equals, joined, paginate
from svc.registry.principal import Access, Principal, Role, Scope
from svc_actors.controller.machine_records import announce_machine
from svc_actors.controller.security_groups import (
    MAX_GROUPS_OF_A_MACHINE,
    Action,
    Direction,
    FirewallRule,
    TransportProtocol,
    add_rule,
    create_group,
    remove_group,
    remove_rule,
    set_groups,
)
from svc_actors.errors import forbidden, not_found, wrong_field
from svc_actors.store import Queryable, Record, Transaction, audit

_SELECT = """
SELECT g.*, p.name AS project_name
FROM security_groups AS g LEFT JOIN projects AS p ON p.id = g.project_id"""

_MACHINES = "security_group_machines AS m JOIN vms AS v ON v.id = m.vm_id"
_MACHINES_NAMED = 200


def _network(given: object) -> IPv4Network | IPv6Network:
    """A network, or one address for itself alone. One of a zone (`fe80::1%eth0`) is one of a single host."""
    if not isinstance(given, str) or "%" in given:
        raise ValueError("must be a network such as 192.0.2.0/24 or 2001:db8::/32, or an address")
    try:
        return ip_network(given)
    except ValueError:
        pass
    try:
        meant = ip_network(given, strict=False)
    except ValueError:
        raise ValueError("must be a network such as 192.0.2.0/24 or 2001:db8::/32, or an address") from None
    raise ValueError(f"bits are set beyond the prefix; the network is {meant}")


Cidr = Annotated[IPv4Network | IPv6Network, PlainValidator(_network, json_schema_input_type=str)]
Port = Annotated[int, Field(ge=0, le=65535)]
IcmpType = Annotated[int, Field(ge=0, le=255)]


class SecurityGroupRule(Model):
    """`direction` as the guest sees it. Null: `family` is both, ports are all, `cidr` is anybody, `icmp_type` is every
    type. `cidr` is the other side: where ingress comes from, where egress goes to."""

    id: UUID
    direction: Direction
    action: Action
    protocol: TransportProtocol
    family: Literal[4, 6] | None
    port_from: int | None
    port_to: int | None
    cidr: str | None
    icmp_type: int | None
    note: str
    created_at: datetime


class GroupMachine(Model):
    id: UUID
    name: str


class SecurityGroup(Model):
    """`project_id` null: offered by the provider to all projects. `machine_count` counts machines that the caller may
    see; `machines` names the first 200 of them, and is null in a list."""

    id: UUID
    name: str
    description: str
    project_id: UUID | None
    project_name: str | None
    default_ingress: Action
    default_egress: Action
    machine_count: int
    machines: list[GroupMachine] | None
    rules: list[SecurityGroupRule]
    created_at: datetime


class SecurityGroupList(PageRequest):
    project: UUID | None = None


class SecurityGroupRequest(Request):
    id: UUID


class SecurityGroupCreateRequest(Request):
    """`project_id` may be left out where the caller has exactly one; an administrator who leaves it out makes a group
    for all projects."""

    name: Name
    description: Text = ""
    project_id: UUID | None = None
    default_ingress: Annotated[Action, Field(description="What happens to ingress that no rule matches.")] = Action.DROP
    default_egress: Annotated[Action, Field(description="What happens to egress that no rule matches.")] = Action.ACCEPT


class RuleCreateRequest(Request):
    id: UUID
    direction: Direction
    action: Action = Action.ACCEPT
    protocol: TransportProtocol
    family: Annotated[Literal[4, 6] | None, Field(description="IPv4 or IPv6; both without it, and without a cidr.")] = (
        None
    )
    port_from: Annotated[Port | None, Field(description="Destination port of tcp or udp; all without it.")] = None
    port_to: Annotated[Port | None, Field(description="The last port, where it is a range.")] = None
    cidr: Annotated[Cidr | None, Field(description="The other side's addresses; anybody's without it.")] = None
    icmp_type: Annotated[IcmpType | None, Field(description="Only of icmp, with a family.")] = None
    note: Text = ""

    def rule(self) -> FirewallRule:
        """The rule, whole. Raises `invalid`, naming the field, where the fields contradict each other."""
        family = self.family
        if self.cidr is not None:
            if family is not None and family != self.cidr.version:
                raise wrong_field(
                    "cidr", f"this is an address of IPv{self.cidr.version}, and the rule is of IPv{family}"
                )
            family = self.cidr.version
        if self.icmp_type is not None:
            if self.protocol is not TransportProtocol.ICMP:
                raise wrong_field("icmp_type", "only the protocol icmp has types")
            if family is None:
                raise wrong_field("family", "the types of ICMP differ by family: say 4 or 6")
        return FirewallRule(
            direction=self.direction,
            action=self.action,
            protocol=self.protocol,
            family=family,
            ports=self._ports(),
            cidr=self.cidr,
            icmp_type=self.icmp_type,
        )

    def _ports(self) -> tuple[int, int] | None:
        if self.port_from is None:
            if self.port_to is not None:
                raise wrong_field("port_from", "say where the range up to port_to begins")
            return None
        if self.protocol not in (TransportProtocol.TCP, TransportProtocol.UDP):
            raise wrong_field("port_from", "only the protocols tcp and udp have ports")
        last = self.port_from if self.port_to is None else self.port_to
        if last < self.port_from:
            raise wrong_field("port_to", "the range ends before it begins")
        return self.port_from, last


class RuleRequest(Request):
    id: UUID
    rid: UUID


class MachineGroupsRequest(Request):
    """`group_ids` is the whole set; empty, the machine is not filtered."""

    id: UUID
    group_ids: Annotated[list[UUID], Field(max_length=MAX_GROUPS_OF_A_MACHINE)]


async def list_groups(context: Context[Controller], request: SecurityGroupList) -> Page[SecurityGroup]:
    database, principal = context.services.database, context.principal
    rows, total = await paginate(
        database,
        select=_SELECT,
        where=[
            _visible(principal),
            equals("g.project_id", request.project),
            contains(request.q, "g.name", "g.description"),
        ],
        sortable={"name": "g.name", "created_at": "g.created_at", "project": "p.name"},
        default_sort="name",
        request=request,
        tie="g.id",
    )
    return Page[SecurityGroup].of(await _shown(database, principal, rows), total, request)


async def show_group(context: Context[Controller], request: SecurityGroupRequest) -> SecurityGroup:
    return await _show(context.services.database, context.principal, request.id)


async def create(context: Context[Controller], request: SecurityGroupCreateRequest) -> SecurityGroup:
    principal = context.principal
    async with context.services.database.transaction() as tx:
        group = await create_group(
            tx,
            name=request.name,
            description=request.description,
            project_id=await _project(tx, principal, request.project_id),
            default_ingress=request.default_ingress,
            default_egress=request.default_egress,
        )
        await _record(
            tx,
            context,
            group,
            default_ingress=request.default_ingress.value,
            default_egress=request.default_egress.value,
        )
        return await _show(tx, principal, group["id"])


async def delete(context: Context[Controller], request: SecurityGroupRequest) -> None:
    async with context.services.database.transaction() as tx:
        await _changeable(tx, context.principal, request.id)
        await _record(tx, context, await remove_group(tx, request.id))


async def create_rule(context: Context[Controller], request: RuleCreateRequest) -> SecurityGroupRule:
    async with context.services.database.transaction() as tx:
        group = await _changeable(tx, context.principal, request.id)
        rule = _rule(await add_rule(tx, request.id, request.rule(), note=request.note))
        await _record(tx, context, group, rule=_told(rule))
        return rule


async def delete_rule(context: Context[Controller], request: RuleRequest) -> None:
    async with context.services.database.transaction() as tx:
        group = await _changeable(tx, context.principal, request.id)
        rule = _rule(await remove_rule(tx, request.id, request.rid))
        await _record(tx, context, group, rule=_told(rule))


async def set_machine_groups(context: Context[Controller], request: MachineGroupsRequest) -> MachineNetworking:
    async with context.services.database.transaction() as tx:
        machine = await visible_machine(tx, context.principal, request.id)
        groups = await set_groups(tx, request.id, request.group_ids)
        await audit.record(
            tx,
            context.caller,
            target_kind="vm",
            target_id=str(request.id),
            target_name=machine["name"],
            project_id=machine["project_id"],
            details={"groups": sorted(group["name"] for group in groups)},
        )
        await announce_machine(tx, request.id)
        return await networking_of(tx, context.principal, request.id)


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
        raise wrong_field("project_id", "say which project the security group belongs to")
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
    """The groups with their rules, oldest first, and with how many machines the caller sees in each."""
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
    """The rule as the audit has it: what was said of it, without what was left out."""
    return rule.model_dump(mode="json", exclude={"created_at"}, exclude_none=True)


async def _record(tx: Transaction, context: Context[Controller], group: Record, **details: Any) -> None:
    await audit.record(
        tx,
        context.caller,
        target_kind="security_group",
        target_id=str(group["id"]),
        target_name=group["name"],
        project_id=group["project_id"],
        details=details or None,
    )


def _operation(
    name: str, summary: str, request: Any, response: Any, handler: Any, route: Route, command: Command
) -> Operation[Controller, Any, Any]:
    mutates = route.method is not Method.GET
    return Operation(
        name=name,
        summary=summary,
        request=request,
        response=response,
        handler=handler,
        route=route,
        command=command,
        access=Access.SIGNED_IN,
        scope=Scope.WRITE if mutates else Scope.READ,
        mutates=mutates,
    )


OPERATIONS: tuple[Operation[Controller, Any, Any], ...] = (
    _operation(
        "security_group.list",
        "List security groups with their rules",
        SecurityGroupList,
        Page[SecurityGroup],
        list_groups,
        Route(Method.GET, "/security-groups"),
        Command(("security-group", "list")),
    ),
    _operation(
        "security_group.create",
        "Make a security group",
        SecurityGroupCreateRequest,
        SecurityGroup,
        create,
        Route(Method.POST, "/security-groups", status=201),
        Command(("security-group", "create"), positional=("name",)),
    ),
    _operation(
        "security_group.show",
        "Show a security group with its rules",
        SecurityGroupRequest,
        SecurityGroup,
        show_group,
        Route(Method.GET, "/security-groups/{id}"),
        Command(("security-group", "show"), positional=("id",)),
    ),
    _operation(
        "security_group.delete",
        "Delete a security group that no machine uses",
        SecurityGroupRequest,
        None,
        delete,
        Route(Method.DELETE, "/security-groups/{id}"),
        Command(("security-group", "delete"), positional=("id",)),
    ),
    _operation(
        "security_group.add_rule",
        "Add a rule to a security group, for every machine in it",
        RuleCreateRequest,
        SecurityGroupRule,
        create_rule,
        Route(Method.POST, "/security-groups/{id}/rules", status=201),
        Command(("security-group", "add-rule"), positional=("id", "direction", "protocol")),
    ),
    _operation(
        "security_group.remove_rule",
        "Remove a rule from a security group, for every machine in it",
        RuleRequest,
        None,
        delete_rule,
        Route(Method.DELETE, "/security-groups/{id}/rules/{rid}"),
        Command(("security-group", "remove-rule"), positional=("id", "rid")),
    ),
    _operation(
        "vm.security-groups",
        "Put a machine into these security groups and no others",
        MachineGroupsRequest,
        MachineNetworking,
        set_machine_groups,
        Route(Method.PUT, "/vms/{id}/security-groups"),
        Command(("vm", "security-groups"), positional=("id",)),
    ),
)
