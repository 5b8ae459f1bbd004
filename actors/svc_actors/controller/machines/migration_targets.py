"""Where a machine could move: every other node, judged by what it has reported and by its resources that are promised
already.

A machine that is off moves `offline`. A running machine moves `live` if the other host could continue its guest;
otherwise by a `restart`, and the reasons say why: another processor, another accelerator, a missing machine type, an
agent without live migration, snapshots. A node that could not take the machine at all has no mode. Reasons start with a
word that says what they are about (node, agent, machine, vcpus, memory, disk, firmware, tpm, pool, network, image; cpu,
machine type, cdrom, snapshots), so that a reader finds the one thing to fix.

Each node has disks of its own, so all disks of a machine are copied, and the target needs room for them. Nothing is
locked and no room is reserved: the judgement holds only for the moment, and the move judges again under its locks
(`moving`).

Rejected: leaving unsuitable nodes out of the list. The specification has every other node judged, and an operator who
empties a node needs to know what keeps each of the others from taking a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.machines.spec import effective_rate
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.networking.pool_needs import lack, needs
from svc_actors.controller.networking.security_groups import CONNTRACK_ON_BRIDGES
from svc_actors.controller.placement.refusals import lacking, platform_lacks, state_obstacles
from svc_actors.controller.platforms import platform_of
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found
from svc_nodeagent.protocol import DomainState, VmLiveSend

_Q35: Final = "pc-q35-"
"""Machines are defined as `q35`; libvirt resolves this to the newest type of this family on the machine's host, and
keeps that type in the definition."""
_LIVE_SINCE: Final = VmLiveSend.facts.since


class MigrationMode(StrEnum):
    LIVE = "live"
    RESTART = "restart"
    OFFLINE = "offline"


@dataclass(frozen=True)
class MigrationTarget:
    """One node and how the machine could move to it. Without a mode, `reasons` say why the node could not take the
    machine; with `restart`, why the machine could not move live."""

    node_id: UUID
    node_name: str
    mode: MigrationMode | None
    reasons: tuple[str, ...]


async def migration_targets(queryable: Queryable, vm_id: UUID) -> list[MigrationTarget]:
    """Every node except the machine's own, sorted by name. Raises not_found."""
    machine = await queryable.fetchrow(_MACHINE, vm_id)
    if machine is None:
        raise not_found("There is no such machine.")
    pools = await queryable.fetch(_POOLS, vm_id)
    nodes = await queryable.fetch(_OTHER_NODES, machine["node_id"], machine["image_id"])
    itself = _of_itself(machine)
    return [_judged(machine, itself, pools, node) for node in nodes]


_FACTS: Final = """json_build_object('accelerator', nodes.facts->'accelerator', 'cpu_model', nodes.facts->'cpu_model',
                                     'machine_types', nodes.facts->'machine_types',
                                     'network_lacks', nodes.facts->'network_lacks',
                                     'platform_features', nodes.facts->'platform_features',
                                     'platform_lacks', nodes.facts->'platform_lacks')"""

_MACHINE: Final = f"""
SELECT vms.status, vms.built_at, vms.node_id, vms.image_id, vms.vcpus, vms.memory_mib, vms.rate_mbps,
       vms.disk_gib + (SELECT coalesce(sum(size_gib), 0)::int FROM volumes WHERE vm_id = vms.id) AS disk_gib,
       vms.firmware, vms.tpm, vms.throttle_mbps, nodes.name AS node_name, nodes.agent_protocol, {_FACTS} AS facts,
       CASE WHEN nodes.lost_at IS NULL THEN nodes.state ELSE 'lost' END AS node_state,
       images.digest, images.name AS image_name, vms.unconfirmed, vms.observed_state, vms.iso_image_id,
       (SELECT count(*) FROM machine_snapshots WHERE vm_id = vms.id) AS snapshots,
       (SELECT op FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id AND status IN ('queued', 'running')
        ORDER BY created_at LIMIT 1) AS busy_with,
       EXISTS (SELECT FROM security_group_machines WHERE vm_id = vms.id) AS in_groups
FROM vms JOIN images ON images.id = vms.image_id LEFT JOIN nodes ON nodes.id = vms.node_id
WHERE vms.id = $1 AND vms.deleted_at IS NULL"""

_POOLS: Final = """
SELECT DISTINCT pools.name, pools.family, pools.topology, pools.vlan, pools.gateway, pools.location_id, pools.node_ids
FROM allocations JOIN pools ON pools.id = allocations.pool_id
WHERE allocations.vm_id = $1 AND allocations.state = 'allocated' ORDER BY pools.name"""

_OTHER_NODES: Final = f"""
SELECT node_capacity.*, nodes.name, nodes.state, nodes.mode, nodes.maintenance, nodes.disk_level, nodes.state_reason,
       (nodes.capacity->>'disk_free_gib')::float8 AS disk_free_gib, nodes.capacity IS NULL AS unreported,
       nodes.lost_at IS NOT NULL AS lost, nodes.agent_protocol, {_FACTS} AS facts,
       EXISTS (SELECT FROM node_images has WHERE has.node_id = nodes.id AND has.image_id = $2) AS has_image
FROM nodes JOIN node_capacity ON node_capacity.node_id = nodes.id
WHERE nodes.deleted_at IS NULL AND nodes.id IS DISTINCT FROM $1
ORDER BY nodes.name"""


def _judged(machine: Record, itself: Sequence[str], pools: Sequence[Record], node: Record) -> MigrationTarget:
    reasons = [*itself, *_why_not(machine, pools, node)]
    if reasons:
        return MigrationTarget(node["node_id"], node["name"], None, tuple(reasons))
    if machine["status"] == MachineStatus.STOPPED:
        return MigrationTarget(node["node_id"], node["name"], MigrationMode.OFFLINE, ())
    # The machine can move to this node; the reasons collected from here on say only why it cannot move live.
    not_live = (*_not_live_itself(machine), *_why_not_live(machine["facts"], node["facts"]), *_knows_no_live(node))
    mode = MigrationMode.RESTART if not_live else MigrationMode.LIVE
    return MigrationTarget(node["node_id"], node["name"], mode, not_live)


def _of_itself(machine: Record) -> list[str]:
    """What keeps the machine on its node, whichever target is chosen."""
    # Only the first reason is returned. The others may only follow from it: a machine that is being created is also
    # busy.
    if machine["status"] not in (MachineStatus.RUNNING, MachineStatus.STOPPED):
        return [f"machine: it is {machine['status']}; only a running or a stopped one can be migrated"]
    if machine["node_state"] != "online":
        return [f"machine: its node {machine['node_name']} is {machine['node_state']}"]
    if machine["unconfirmed"]:
        return [f"machine: its node {machine['node_name']} has not reported it as recorded yet"]
    if machine["busy_with"] is not None:
        return [f"machine: it is busy with {machine['busy_with']}"]
    return []


def _why_not(machine: Record, pools: Sequence[Record], node: Record) -> list[str]:
    found = [each.text for each in state_obstacles(node)]
    found += _agent(machine, node)
    if not node["unreported"]:
        room = lacking(node, vcpus=machine["vcpus"], memory_mib=machine["memory_mib"], disk_gib=machine["disk_gib"])
        found += [each.text for each in room]
    if node["state"] == "online":  # The facts of an offline node may be from an older agent, which knew fewer features.
        found += platform_lacks(node["facts"], platform_of(machine).needs)
    found += [reason for pool in pools if (reason := _pool(pool, node)) is not None]
    found += _network(machine, pools, node["facts"])
    if not node["has_image"] and machine["digest"] is None:
        found.append(f"image: it lacks {machine['image_name']}, which has no checksum and so cannot be fetched")
    return found


def _agent(machine: Record, node: Record) -> list[str]:
    if node["state"] != "online":
        return [f"agent: {node['state_reason']}"] if node["state_reason"] and not node["lost"] else []
    here, there = machine["agent_protocol"], node["agent_protocol"]
    # The target gets what the source's agent has recorded of the machine; an older protocol would leave out the parts
    # that it does not know.
    if here is not None and there is not None and there < here:
        return [f"agent: it speaks protocol {there}, and that of the machine's node {here}"]
    return []


def _pool(pool: Record, node: Record) -> str | None:
    """Why the machine cannot keep its addresses of this pool on the node; None if it can."""
    if pool["location_id"] != node["location_id"]:
        return f"pool: {pool['name']} is of another location"
    if pool["node_ids"] and node["node_id"] not in pool["node_ids"]:
        return f"pool: {pool['name']} does not serve this node"
    wanted = needs(pool)
    reason = lack(node["facts"], wanted)
    return None if reason is None else f"pool: it cannot carry {pool['name']} ({reason})"


def _network(machine: Record, pools: Sequence[Record], facts: dict[str, Any]) -> list[str]:
    """Why the host cannot apply the machine's rate or security groups."""
    rated = effective_rate(machine["rate_mbps"], machine["throttle_mbps"]) is not None
    filtered = machine["in_groups"] and any(pool["topology"] == "bridged" for pool in pools)
    asked = [("hold the machine's rate", "rate")] if rated else []
    asked += [("keep to its security groups on a bridge", CONNTRACK_ON_BRIDGES)] if filtered else []
    return [f"network: it cannot {what} ({reason})" for what, of in asked if (reason := lack(facts, (of,))) is not None]


def _not_live_itself(machine: Record) -> list[str]:
    """What keeps the machine's guest from moving while it runs, whichever target is chosen."""
    found = []
    # A live migration resumes the guest on the target, so a guest that an administrator has paused would be resumed,
    # too.
    if machine["observed_state"] == DomainState.PAUSED:
        found.append("machine: its guest is paused")
    if machine["iso_image_id"] is not None:
        found.append("cdrom: the machine's drive holds an ISO, which is only on its current node")
    if machine["snapshots"]:
        found.append(f"snapshots: the machine has {machine['snapshots']}, which a live migration does not take along")
    if (agent := machine["agent_protocol"]) is None or agent < _LIVE_SINCE:
        found.append(
            f"agent: the agent of the machine's node speaks protocol {agent}; live migration needs {_LIVE_SINCE}"
        )
    return found


def _knows_no_live(node: Record) -> list[str]:
    agent = node["agent_protocol"]
    if agent is None or agent < _LIVE_SINCE:
        return [f"agent: it speaks protocol {agent}; live migration needs {_LIVE_SINCE}"]
    return []


def _why_not_live(here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """Why the other host could not continue the running guest. A fact that either host has not reported counts against
    the other host."""
    if here["accelerator"] is None or there["accelerator"] is None:
        return ["cpu: the hosts have not reported their processors"]
    found = []
    if here["accelerator"] != there["accelerator"]:
        found.append(f"cpu: it runs guests by {there['accelerator']}, and the machine's node by {here['accelerator']}")
    elif here["accelerator"] == "kvm" and here["cpu_model"] != there["cpu_model"]:
        # A KVM guest has the processor of its host. Emulated guests have the same processor on every host.
        found.append(f"cpu: it has an {there['cpu_model']}, and the machine's node an {here['cpu_model']}")
    # The record does not name the type that libvirt resolved, so it may be any that the source offers: the target must
    # have all of these.
    offered = set(there["machine_types"] or ())
    missing = [each for each in here["machine_types"] or () if each.startswith(_Q35) and each not in offered]
    if missing:
        found.append(f"machine type: it lacks {', '.join(missing)}, which the machine may have been defined with")
    return found
