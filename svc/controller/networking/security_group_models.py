"""The API's models of security groups. A rule that contradicts itself is refused, naming the field."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from svc.controller.networking.pool_models import Cidr
from svc.identity.fields import Name, Text
from svc.registry.operation import Model, Request
from svc.registry.paging import PageRequest
from svc_actors.controller.networking.security_groups import (
    MAX_GROUPS_OF_A_MACHINE,
    Action,
    Direction,
    FirewallRule,
    TransportProtocol,
)
from svc_common.errors import wrong_field

Port = Annotated[int, Field(ge=0, le=65535)]
IcmpType = Annotated[int, Field(ge=0, le=255)]


class SecurityGroupRule(Model):
    """`direction` is from the guest's point of view. Null means: both families, all ports, any address as `cidr`, every
    `icmp_type`. `cidr` is the other end: the source of ingress, the destination of egress."""

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
    """`project_id` may be left out if the caller has exactly one project; an administrator who leaves it out creates a
    group for all projects."""

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
    family: Annotated[Literal[4, 6] | None, Field(description="IPv4 or IPv6; both by default if no cidr is given.")] = (
        None
    )
    port_from: Annotated[Port | None, Field(description="Destination port of tcp or udp; all by default.")] = None
    port_to: Annotated[Port | None, Field(description="The last port, where it is a range.")] = None
    cidr: Annotated[Cidr | None, Field(description="The other side's addresses; all by default.")] = None
    icmp_type: Annotated[IcmpType | None, Field(description="ICMP type: only with protocol icmp and a family.")] = None
    note: Annotated[Text, Field(description="Purpose of the rule.")] = ""

    def rule(self) -> FirewallRule:
        """The complete rule. Raises `invalid`, naming the field, if the fields contradict each other."""
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
                raise wrong_field("port_from", "give the start of the range that ends at port_to")
            return None
        if self.protocol not in (TransportProtocol.TCP, TransportProtocol.UDP):
            raise wrong_field("port_from", "only the protocols tcp and udp have ports")
        last = self.port_from if self.port_to is None else self.port_to
        if last < self.port_from:
            raise wrong_field("port_to", "the range ends before it starts")
        return self.port_from, last


class RuleRequest(Request):
    id: UUID
    rid: UUID


class MachineGroupsRequest(Request):
    """`group_ids`: all groups of the machine from now on; if empty, its traffic is not filtered."""

    id: UUID
    group_ids: Annotated[list[UUID], Field(max_length=MAX_GROUPS_OF_A_MACHINE)]
