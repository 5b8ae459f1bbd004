"""Why no node takes a machine: for each node, and in one sentence for all of them.

Four things keep a node from taking a machine, in this order: its state, its platform (UEFI, TPM), the network (no pool
that it can carry) and its room. The refusal names the obstacles of the nodes that came nearest. It is computed without
locks, after placement has found no node, and reserves nothing.

Rejected: the same sentence for every cause ("No node has room"), as at first. It was untrue if a state or the network
was the obstacle, and named nothing that could be changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.networking.pool_needs import lack, needs
from svc_actors.sizes import disk_text, memory_text
from svc_actors.store import Queryable, Record
from svc_common.errors import ErrorCode, ServiceError, capacity, conflict, not_found, unavailable
from svc_nodeagent.protocol import PLAIN, TPM_FEATURE, Firmware, Platform

MOST_EXPLAINED: Final = 100
"""The most nodes that the details of a refusal list, however many there are."""

_UNTOLD: Final = "its agent is of an earlier release, which knows neither UEFI nor TPM: upgrade it"
_ABOUT: Final = {Firmware.UEFI.value: "firmware", Firmware.UEFI_SECURE.value: "firmware", TPM_FEATURE: "tpm"}


class NodesAway(ServiceError):  # noqa: N818 - named for what it says
    """Nodes that may have room are offline or have just joined: the same order may succeed a moment later."""

    def __init__(self, details: Mapping[str, object] | None) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            "The nodes that may have room for this machine are offline or have just joined; nothing was created.",
            hint="Try again in a moment, or once a node is back.",
            details=details,
        )


@dataclass(frozen=True)
class MachineNeeds:
    """What a machine requires. `node_id` and `location_id` narrow the choice."""

    vcpus: int
    memory_mib: int
    disk_gib: int
    network_id: UUID
    node_id: UUID | None = None
    location_id: UUID | None = None
    platform: Platform = PLAIN


class Stage(IntEnum):
    """How near a node came to taking the machine: a greater value is nearer."""

    STATE = 1
    PLATFORM = 2
    NETWORK = 3
    ROOM = 4


@dataclass(frozen=True)
class Obstacle:
    """One obstacle: `text` is about one node, `summary` is for the sentence about all nodes."""

    stage: Stage
    text: str
    summary: str


_OFFLINE: Final = Obstacle(Stage.STATE, "node: it is offline", "offline")
_UNREPORTED: Final = Obstacle(Stage.STATE, "node: it has not reported its capacity", "without a report of what it has")
_PENDING: Final = Obstacle(Stage.STATE, "node: it is pending", "not connected yet")
_LOST: Final = Obstacle(Stage.STATE, "node: it was declared lost", "lost for good")
_OBSERVED: Final = Obstacle(Stage.STATE, "node: it is only observed", "only observed")
_FIRMWARES: Final = {Firmware.UEFI: "UEFI", Firmware.UEFI_SECURE: "UEFI with Secure Boot"}
_MAINTENANCE: Final = Obstacle(Stage.STATE, "node: it is in maintenance", "in maintenance")


@dataclass(frozen=True)
class _Node:
    id: UUID
    name: str
    obstacles: list[Obstacle]

    @property
    def stage(self) -> Stage:
        return min(obstacle.stage for obstacle in self.obstacles)

    @property
    def may_be_back(self) -> bool:
        """Whether the node lacks nothing but its connection, which may be back at any moment."""
        if _UNREPORTED in self.obstacles:  # The node's room is unknown.
            # The node is connected or has just joined, and its first inventory will come soon. Any obstacle other than
            # these (offline, maintenance, a missing pool) would still be there afterwards.
            rest = [each for each in self.obstacles if each.stage is not Stage.ROOM and each is not _UNREPORTED]
            return rest in ([], [_PENDING])
        return self.obstacles in ([_OFFLINE], [_PENDING])


def state_obstacles(node: Record) -> list[Obstacle]:
    """Why a node takes no machine at all. `node` has the columns state, mode, maintenance and disk_level, and
    disk_free_gib, lost and unreported."""
    found = []
    # "Lost" is checked first: a lost node keeps the state `offline`, and would otherwise count as a node that may be
    # back in a moment.
    if node["lost"]:
        found.append(_LOST)
    elif node["state"] != "online":
        found.append(_OFFLINE if node["state"] == "offline" else _PENDING)
    if node["mode"] != "managed":
        found.append(_OBSERVED)
    if node["maintenance"]:
        found.append(_MAINTENANCE)
    if node["disk_level"] == "critical":
        free = disk_text(node["disk_free_gib"] or 0.0)
        found.append(Obstacle(Stage.STATE, f"node: its disk is nearly full, {free} free", "short of free disk space"))
    if node["unreported"]:
        found.append(_UNREPORTED)
    return found


def lacking(node: Record, *, vcpus: int, memory_mib: int, disk_gib: int) -> list[Obstacle]:
    """The resources of which a node (a row of `node_capacity`) has too little to promise this much more."""
    lacks = []
    # A resource that does not grow is not checked: on a node that has promised more than a lowered overcommit allows, a
    # machine can still shrink.
    for name, column, wanted, text in (
        ("vcpus", "vcpus", vcpus, str),
        ("memory", "memory_mib", memory_mib, memory_text),
        ("disk", "disk_gib", disk_gib, disk_text),
    ):
        free = max(0, int(node[column] - node[f"promised_{column}"]))
        if wanted > 0 and node[f"promised_{column}"] + wanted > node[column]:
            what = f"{wanted} vCPUs" if name == "vcpus" else f"{text(wanted)} of {name}"
            lacks.append(Obstacle(Stage.ROOM, f"{name}: {text(wanted)} wanted, {text(free)} free", what))
    return lacks


async def refusal(queryable: Queryable, need: MachineNeeds, *, explain: bool) -> ServiceError:
    """The error for a machine that no node takes. With `explain` the details say why for each node, and the message is
    written for administrators and staff."""
    nodes = await _nodes(queryable, need)
    if not nodes:
        return await _no_nodes(queryable, need)
    refused = [node for node in nodes if node.obstacles]
    details = {"nodes": [_told(node) for node in refused[:MOST_EXPLAINED]]} if explain else None
    if len(refused) < len(nodes):
        # Placement found no node a moment ago, but now at least one would take the machine: room was freed or a node
        # came back in between.
        return unavailable(
            "The nodes changed while this machine was being placed; nothing was created.", hint="Try again."
        )
    # This is checked before capacity: a caller that reads "no room" does not try again, although a node may be back in
    # a moment.
    if any(node.may_be_back for node in nodes):
        return NodesAway(details)
    # A node's stage is that of its lowest obstacle, so the nodes with the highest stage came closest to taking the
    # machine. Only obstacles of that stage are named: a node that is in maintenance and full is described as in
    # maintenance.
    nearest = max(node.stage for node in nodes)
    obstacles = [[each for each in node.obstacles if each.stage is nearest] for node in nodes if node.stage is nearest]
    message, hint = _words(nearest, obstacles, explain=explain)
    if need.node_id is not None:
        # The label "node:" would repeat the subject of this sentence.
        reasons = [each.text.removeprefix("node: ") for each in obstacles[0]]
        message = f"Node {nodes[0].name} does not take this machine: {_listed(reasons)}."
    return capacity(message, hint=hint, details=details)


def _words(stage: Stage, obstacles: Sequence[Sequence[Obstacle]], *, explain: bool) -> tuple[str, str]:
    match stage:
        case Stage.STATE:
            states = dict.fromkeys(each.summary for of_node in obstacles for each in of_node)
            hint = "Take a node out of maintenance, or add one." if explain else "Try again later."
            return f"No node takes new machines now: {_listed(states)}.", hint
        case Stage.PLATFORM:
            kinds = dict.fromkeys(each.summary for of_node in obstacles for each in of_node)
            hint = (
                "`details` say what to install where." if explain else "Ask an administrator, or choose another image."
            )
            return f"No node has what machines of this image need: {_listed(kinds)}.", hint
        case Stage.NETWORK:
            reasons = dict.fromkeys(each.summary for of_node in obstacles for each in of_node)
            hint = "Add a pool to the network, or enable one." if explain else "Ask an administrator for a pool."
            return f"The network has no pool for a machine here: {_listed(reasons)}.", hint
        case Stage.ROOM:
            # "None has 8 vCPUs free" is true only if every node lacks them, so only what all nodes lack is named.
            common = set.intersection(*({each.summary for each in of_node} for of_node in obstacles))
            missing = [each.summary for each in obstacles[0] if each.summary in common]
            hint = f"Choose a smaller size, or {'add a node' if explain else 'try again later'}."
            if missing:
                return f"No node has room for this machine: none has {_listed(missing)} free.", hint
            return "No node has room for this machine: each lacks something else of its size.", hint


async def _no_nodes(queryable: Queryable, need: MachineNeeds) -> ServiceError:
    """The error if no node matches `node_id` and `location_id`: it says which of the two is wrong, or that there are no
    nodes yet."""
    if need.node_id is not None:
        if await queryable.fetchval("SELECT true FROM nodes WHERE id = $1 AND deleted_at IS NULL", need.node_id):
            return capacity("The node is not of this location.", hint="Leave out node_id or location_id.")
        return not_found("There is no such node.")
    if need.location_id is not None:
        name = await queryable.fetchval("SELECT name FROM locations WHERE id = $1", need.location_id)
        if name is None:
            return not_found("There is no such location.")
        return capacity(f"The location {name} has no nodes.", hint="Choose another location.")
    return capacity("There are no nodes yet.", hint="An administrator adds one: svc node add.")


async def _nodes(queryable: Queryable, need: MachineNeeds) -> list[_Node]:
    rows = await queryable.fetch(
        """SELECT node_capacity.*, nodes.name, nodes.state, nodes.mode, nodes.maintenance,
                  nodes.disk_level, (nodes.capacity->>'disk_free_gib')::float8 AS disk_free_gib,
                  nodes.capacity IS NULL AS unreported, nodes.lost_at IS NOT NULL AS lost,
                  CASE WHEN lacks <> '{}' THEN nodes.facts->'network_lacks' END AS network_lacks,
                  json_build_object('platform_features', nodes.facts->'platform_features',
                                    'platform_lacks', nodes.facts->'platform_lacks') AS platform_facts
           FROM node_capacity JOIN nodes ON nodes.id = node_capacity.node_id
           WHERE nodes.deleted_at IS NULL AND ($1::uuid IS NULL OR nodes.id = $1)
             AND ($2::uuid IS NULL OR nodes.location_id = $2)
           ORDER BY nodes.name""",
        need.node_id,
        need.location_id,
    )
    pools = await queryable.fetch(
        """SELECT name, family, topology, vlan, gateway, location_id, node_ids FROM pools
           WHERE network_id = $1 AND enabled AND family = (
               SELECT min(family) FROM pools WHERE network_id = $1 AND enabled)
           ORDER BY created_at, id""",
        need.network_id,
    )
    return [_Node(row["node_id"], row["name"], _obstacles(row, pools, need)) for row in rows]


def _obstacles(node: Record, pools: Sequence[Record], need: MachineNeeds) -> list[Obstacle]:
    found = state_obstacles(node)
    if not node["unreported"]:
        found += lacking(node, vcpus=need.vcpus, memory_mib=need.memory_mib, disk_gib=need.disk_gib)
        found += _platform(node, need.platform)
    network = _network(node, pools)
    return found if network is None else [*found, network]


def _platform(node: Record, platform: Platform) -> list[Obstacle]:
    reasons = platform_lacks(node["platform_facts"], platform.needs)
    names = {"firmware": _FIRMWARES.get(platform.firmware, ""), "tpm": "a TPM 2.0"}
    return [Obstacle(Stage.PLATFORM, reason, names[reason.partition(":")[0]]) for reason in reasons]


def _network(node: Record, pools: Sequence[Record]) -> Obstacle | None:
    """Why no pool can give a machine on this node its primary address. `pools` are of the family of primary
    addresses."""
    if not pools:
        return Obstacle(Stage.NETWORK, "network: it has no enabled pool", "none is enabled")
    serving = [
        pool
        for pool in pools
        if pool["location_id"] == node["location_id"] and (not pool["node_ids"] or node["node_id"] in pool["node_ids"])
    ]
    if not serving:
        return Obstacle(Stage.NETWORK, "network: no enabled pool serves this node", "none serves a node with room")
    facts: dict[str, Any] = {"network_lacks": node["network_lacks"]}
    reasons = [lack(facts, needs(pool)) for pool in serving]
    # One pool that the host can carry is enough. Whether the pool has a free address is found out only when placement
    # takes one.
    if None in reasons:
        return None
    text = f"network: it cannot carry the pool {serving[0]['name']} ({reasons[0]})"
    return Obstacle(Stage.NETWORK, text, "the nodes with room cannot carry the pools that serve them")


def _told(node: _Node) -> dict[str, object]:
    return {"node_id": str(node.id), "node": node.name, "reasons": [each.text for each in node.obstacles]}


def _listed(words: Iterable[str]) -> str:
    """A list in words: "one", "one and two", "one, two and three"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


# Invariant: a machine is placed, moved, reinstalled and restored only on a node that has reported its firmware and its
# TPM. A node that has not reported (an agent of an earlier release) counts as having a BIOS and nothing else.
def platform_lacks(facts: Mapping[str, Any] | None, needs: tuple[str, ...]) -> list[str]:
    """Why a node with these facts cannot have machines with these needs. Each reason starts with `firmware:` or
    `tpm:`."""
    told = facts or {}
    # The node has a feature only if `platform_features` lists it. `platform_lacks` gives only the reason for a missing
    # one: a feature that is not in it may still be missing.
    features, lacks = told.get("platform_features") or (), told.get("platform_lacks") or {}
    missing = [need for need in needs if need not in features]
    return [f"{_ABOUT[need]}: {lacks.get(need, _UNTOLD)}" for need in missing]


async def require_platform(queryable: Queryable, node_id: UUID | None, platform: Platform) -> None:
    """Raises conflict if the machine's node does not offer this platform."""
    facts = await queryable.fetchval("SELECT facts FROM nodes WHERE id = $1", node_id)
    if reasons := platform_lacks(facts, platform.needs):
        raise conflict(
            f"The machine's node does not support this: {'; '.join(reasons)}. The machine was not changed.",
            hint="Move the machine to another node, or ask an administrator to fix that and run `svc node inventory`.",
            details={"reasons": reasons},
        )
