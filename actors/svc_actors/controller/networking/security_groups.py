"""Security groups: named sets of rules for machines' traffic, and the firewall that results from several of them.

Invariants:
- a machine is only in groups of its own project and in the provider's (without a project);
- a group is not deleted while a machine is in it;
- every change of a group's rules or members calls `network_changed` for the machines concerned, in the same
  transaction. A change of rules locks the group's row, and adding a machine takes a shared lock on it. So a machine
  that joins while the rules change is either among those notified, or reads the new rules;
- locks are taken in one order: groups by id, then machines by id.

Why: docs/decisions/0033-guest-networks-on-the-host.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NoReturn
from uuid import UUID

from svc_actors.controller.networking.changes import network_changed
from svc_actors.store import Queryable, Record, Transaction, UniqueViolationError
from svc_common.errors import capacity, conflict, not_found
from svc_nodeagent.protocol import Action as Action
from svc_nodeagent.protocol import Direction as Direction
from svc_nodeagent.protocol import Firewall, Topology
from svc_nodeagent.protocol import FirewallRule as FirewallRule
from svc_nodeagent.protocol import TransportProtocol as TransportProtocol

MAX_RULES: Final = 200
"""The most rules of one group."""
MAX_GROUPS_OF_A_MACHINE: Final = 10
MAX_GROUPS_OF_A_PROJECT: Final = 200

CONNTRACK_ON_BRIDGES: Final = "bridge-conntrack"
"""The node feature for connection tracking on bridges. Without it a node cannot recognise replies on a bridge, and so
cannot enforce a security group there."""


@dataclass(frozen=True)
class Group:
    """The rules and defaults of a group."""

    default_ingress: Action
    default_egress: Action
    rules: tuple[FirewallRule, ...] = ()


def merged(groups: Sequence[Group]) -> Firewall | None:
    """The firewall of a machine in all of these groups; None (no filter) without groups.

    A matching `drop` rule of any group takes precedence over any `accept` rule. If no rule matches, a default of `drop`
    takes precedence over one of `accept`.
    """
    if not groups:
        return None
    rules = dict.fromkeys(rule for group in groups for rule in group.rules)
    return Firewall(
        default_ingress=_stricter(group.default_ingress for group in groups),
        default_egress=_stricter(group.default_egress for group in groups),
        rules=tuple(sorted(rules, key=lambda rule: rule.action is Action.ACCEPT)),
    )


def _stricter(actions: Iterable[Action]) -> Action:
    return Action.DROP if Action.DROP in set(actions) else Action.ACCEPT


async def firewall_of(queryable: Queryable, vm_id: UUID) -> Firewall | None:
    """The firewall of the machine's groups; None if it is in none. Equal records give an equal firewall."""
    rows = await queryable.fetch(
        """SELECT g.id AS in_group, g.default_ingress, g.default_egress, r.*
           FROM security_group_machines AS m
           JOIN security_groups AS g ON g.id = m.group_id
           LEFT JOIN security_group_rules AS r ON r.group_id = g.id
           WHERE m.vm_id = $1
           ORDER BY g.id, r.created_at, r.id""",
        vm_id,
    )
    groups = []
    for _, said in groupby(rows, key=lambda row: row["in_group"]):
        own = list(said)
        groups.append(
            Group(
                default_ingress=Action(own[0]["default_ingress"]),
                default_egress=Action(own[0]["default_egress"]),
                rules=tuple(rule_of(row) for row in own if row["id"] is not None),
            )
        )
    return merged(groups)


def rule_of(row: Record) -> FirewallRule:
    return FirewallRule(
        direction=Direction(row["direction"]),
        action=Action(row["action"]),
        protocol=TransportProtocol(row["protocol"]),
        family=row["family"],
        ports=None if row["port_from"] is None else (row["port_from"], row["port_to"]),
        cidr=row["cidr"],
        icmp_type=row["icmp_type"],
    )


async def create_group(
    tx: Transaction,
    *,
    name: str,
    description: str,
    project_id: UUID | None,
    default_ingress: Action,
    default_egress: Action,
) -> Record:
    """Create a group without rules. Raises conflict (the project has one of this name), capacity, not_found (the
    project)."""
    if project_id is not None:
        # The project's row is locked so that its groups are created one at a time; otherwise two creations could exceed
        # the limit together.
        if await tx.fetchval("SELECT true FROM projects WHERE id = $1 FOR UPDATE", project_id) is None:
            raise not_found("There is no such project.")
        made = await tx.fetchval("SELECT count(*) FROM security_groups WHERE project_id = $1", project_id)
        if made >= MAX_GROUPS_OF_A_PROJECT:
            raise capacity(
                f"The project has {made} security groups, as many as a project may have; none was created.",
                hint="Delete one that no machine uses.",
            )
    try:
        return await tx.fetchone(
            """INSERT INTO security_groups (project_id, name, description, default_ingress, default_egress)
                   VALUES ($1, $2, $3, $4, $5) RETURNING *""",
            project_id,
            name,
            description,
            default_ingress.value,
            default_egress.value,
        )
    except UniqueViolationError:
        where = "in this project" if project_id is not None else "for all projects"
        raise conflict(f"There is a security group named {name} {where} already.") from None


async def remove_group(tx: Transaction, group_id: UUID) -> Record:
    """Remove a group with its rules. Raises conflict while a machine uses it."""
    group = await _locked(tx, group_id)
    machines = await tx.fetch(
        """SELECT vms.id, vms.name FROM security_group_machines AS m JOIN vms ON vms.id = m.vm_id
           WHERE m.group_id = $1 AND vms.deleted_at IS NULL ORDER BY vms.name, vms.id""",
        group_id,
    )
    if machines:
        _refuse_in_use(group["name"], machines)
    await tx.execute("DELETE FROM security_group_machines WHERE group_id = $1", group_id)
    await tx.execute("DELETE FROM security_groups WHERE id = $1", group_id)
    return group


def _refuse_in_use(name: str, machines: Sequence[Record]) -> NoReturn:
    named = ", ".join(row["name"] for row in machines[:5]) + (" and others" if len(machines) > 5 else "")
    how_many = "a machine uses it" if len(machines) == 1 else f"{len(machines)} machines use it"
    raise conflict(
        f"The security group {name} stays, because {how_many}: {named}.",
        hint="Take the machines out of the group first.",
        details={"vm_ids": [str(row["id"]) for row in machines[:100]]},
    )


async def add_rule(tx: Transaction, group_id: UUID, rule: FirewallRule, *, note: str) -> Record:
    """Add a rule, for every machine in the group. Raises conflict if it exists already, and capacity."""
    await _locked(tx, group_id)
    has = await tx.fetchval("SELECT count(*) FROM security_group_rules WHERE group_id = $1", group_id)
    if has >= MAX_RULES:
        raise capacity(
            f"The group has {has} rules, as many as a group may have; none was added.",
            hint="A machine may be in several groups, and one rule may hold a range of ports or of addresses.",
        )
    port_from, port_to = rule.ports or (None, None)
    try:
        row = await tx.fetchone(
            """INSERT INTO security_group_rules (group_id, direction, action, protocol, family, port_from, port_to,
                                                     cidr, icmp_type, note)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING *""",
            group_id,
            rule.direction.value,
            rule.action.value,
            rule.protocol.value,
            rule.family,
            port_from,
            port_to,
            rule.cidr,
            rule.icmp_type,
            note,
        )
    except UniqueViolationError:
        raise conflict("The group has this rule already; nothing was changed.") from None
    await _group_changed(tx, group_id)
    return row


async def remove_rule(tx: Transaction, group_id: UUID, rule_id: UUID) -> Record:
    """Remove a rule, for every machine in the group."""
    await _locked(tx, group_id)
    row = await tx.fetchrow(
        "DELETE FROM security_group_rules WHERE id = $1 AND group_id = $2 RETURNING *", rule_id, group_id
    )
    if row is None:
        raise not_found("The security group has no such rule.")
    await _group_changed(tx, group_id)
    return row


async def set_groups(tx: Transaction, vm_id: UUID, group_ids: Iterable[UUID]) -> list[Record]:
    """Set the groups of the machine to these; returns their rows (id, name).

    Raises not_found for a group of another project, and conflict if the machine's host could not enforce them.
    """
    project_id: UUID | None = await tx.fetchval("SELECT project_id FROM vms WHERE id = $1", vm_id)
    groups = await usable_groups(tx, project_id, group_ids)
    wanted = [row["id"] for row in groups]
    if await tx.fetchval("SELECT true FROM vms WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE", vm_id) is None:
        raise not_found("There is no such machine.")
    await tx.execute(
        "DELETE FROM security_group_machines WHERE vm_id = $1 AND group_id <> ALL ($2::uuid[])", vm_id, wanted
    )
    await join_groups(tx, vm_id, groups)
    await network_changed(tx, [vm_id])
    return groups


async def usable_groups(tx: Transaction, project_id: UUID | None, group_ids: Iterable[UUID]) -> list[Record]:
    """The rows (id, name) of these groups, locked against changes. Call this before machines and pools are locked.
    Raises not_found for a group of another project."""
    wanted = sorted(set(group_ids))
    groups = await tx.fetch(
        """SELECT id, name FROM security_groups
           WHERE id = ANY($1::uuid[]) AND (project_id IS NULL OR project_id = $2) ORDER BY id FOR SHARE""",
        wanted,
        project_id,
    )
    if len(groups) < len(wanted):
        missing = sorted(set(wanted) - {row["id"] for row in groups})
        raise not_found(
            f"There is no security group {missing[0]} for this machine; nothing was changed.",
            hint="A machine uses groups of its own project, and those that are offered to all projects.",
            details={"group_ids": [str(group_id) for group_id in missing]},
        )
    return groups


async def join_groups(tx: Transaction, vm_id: UUID, groups: Iterable[Record]) -> None:
    """Add the machine to these groups, the result of `usable_groups`. Raises conflict if its host could not enforce
    them."""
    await tx.execute(
        "INSERT INTO security_group_machines (vm_id, group_id) SELECT $1, unnest($2::uuid[]) ON CONFLICT DO NOTHING",
        vm_id,
        [group["id"] for group in groups],
    )
    await require_filterable(tx, vm_id)


async def leave_groups(tx: Transaction, vm_id: UUID) -> None:
    """Remove a deleted machine from its groups, so that long-lived groups (the provider's) do not accumulate them."""
    await tx.execute("DELETE FROM security_group_machines WHERE vm_id = $1", vm_id)


async def require_filterable(queryable: Queryable, *vm_ids: UUID) -> None:
    """Raises conflict for a machine that is in a group and has an address of a bridged pool, if its node cannot
    recognise replies on a bridge: the firewall would apply only in part. A node that has never reported counts as able.
    """
    row = await queryable.fetchrow(
        """SELECT vms.name, nodes.facts->'network_lacks'->>$3 AS why
           FROM vms
           JOIN nodes ON nodes.id = vms.node_id
           JOIN allocations ON allocations.vm_id = vms.id AND allocations.state = 'allocated'
           JOIN pools ON pools.id = allocations.pool_id
           WHERE vms.id = ANY($1::uuid[]) AND pools.topology = $2 AND nodes.facts ? 'network_features'
             AND NOT nodes.facts->'network_features' ? $3
             AND EXISTS (SELECT FROM security_group_machines WHERE vm_id = vms.id)
           ORDER BY vms.name LIMIT 1""",
        list(vm_ids),
        Topology.BRIDGED.value,
        CONNTRACK_ON_BRIDGES,
    )
    if row is not None:
        why = row["why"] or "its kernel has no connection tracking on bridges"
        raise conflict(
            f"The machine {row['name']} is in a security group, which its host cannot enforce on a bridged pool: "
            f"{why.rstrip('.')}. Nothing was changed.",
            hint="Security groups work on nat and routed pools, and on a host whose kernel tracks bridged connections.",
        )


async def groups_of(queryable: Queryable, vm_id: UUID) -> list[Record]:
    """The machine's groups (id, name), sorted by name."""
    return await queryable.fetch(
        """SELECT g.id, g.name FROM security_groups AS g JOIN security_group_machines AS m ON m.group_id = g.id
           WHERE m.vm_id = $1 ORDER BY g.name, g.id""",
        vm_id,
    )


async def _locked(tx: Transaction, group_id: UUID) -> Record:
    row = await tx.fetchrow("SELECT * FROM security_groups WHERE id = $1 FOR UPDATE", group_id)
    if row is None:
        raise not_found("There is no such security group.")
    return row


async def _group_changed(tx: Transaction, group_id: UUID) -> None:
    machines = await tx.fetch(
        """SELECT vms.id FROM vms JOIN security_group_machines AS m ON m.vm_id = vms.id
           WHERE m.group_id = $1 AND vms.deleted_at IS NULL ORDER BY vms.id FOR NO KEY UPDATE OF vms""",
        group_id,
    )
    await network_changed(tx, [row["id"] for row in machines])
