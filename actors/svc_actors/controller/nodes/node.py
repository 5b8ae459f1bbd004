"""The actor of one node: the only writer of its record.

Invariants:

- the gateway decides whether a node is online; messages only make the actor ask the gateway;
- online means ready: a node that has just joined stays pending until its first inventory has reported its capacity, and
  its agent connects only once it has restored networks and chosen the accelerator;
- a node is deleted only while no machine is placed on it; its certificates are revoked in the same transaction;
- a node that is declared lost never comes back as the same node: its certificates are revoked as well, since its
  machines may be elsewhere by then;
- a host's report about a machine that is not placed on it is refused and audited, with a limit so that no host can fill
  the audit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import close_alert, close_alerts_about, raise_alert
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.images.files import note_cached
from svc_actors.controller.networking.carried import forget_carried
from svc_actors.controller.networking.drift import NetworkDrift
from svc_actors.controller.networking.reservations import refresh_host_reservations
from svc_actors.controller.nodes.live_figures import record_seen
from svc_actors.controller.nodes.records import (
    NodeMode,
    NodeRecord,
    NodeState,
    announce,
    get_node,
    node_itself,
)
from svc_actors.controller.placement.scheduler import lock_capacity
from svc_actors.controller.volumes.observing import record_volumes
from svc_actors.runtime import Actor
from svc_actors.store import Caller, Database, Outcome, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict
from svc_nodeagent.protocol import Hello, InventoryResult, PreflightResult

MOST_UNAUTHORISED_AN_HOUR: Final = 60
_HOUR: Final = 3600.0
_MOST_NAMED: Final = 5
log = structlog.get_logger(__name__)


class Presence(Protocol):
    """The part of the gateway that the actor uses."""

    def is_online(self, node_id: UUID) -> bool: ...

    def mark_lost(self, node_id: UUID) -> None: ...

    def drop(self, node_id: UUID, reason: str) -> None: ...


@dataclass(frozen=True)
class NodeServices:
    """Dependencies of the actors of all nodes. `unauthorised` has, for each node, the times of its unauthorised reports
    in the audit."""

    database: Database
    gateway: Presence
    authority: Authority
    unauthorised: dict[UUID, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeChange:
    """The changes to make to a node; None leaves a field as it is."""

    name: str | None = None
    mode: NodeMode | None = None
    maintenance: bool | None = None
    cpu_overcommit: float | None = None
    memory_overcommit: float | None = None
    disk_overcommit: float | None = None


class Node(Actor):
    def __init__(self, services: NodeServices) -> None:
        self._services = services
        self._database = services.database

    @property
    def node_id(self) -> UUID:
        return UUID(self.key)

    async def look(self, hello: Hello | None = None) -> None:
        """Record whether the node is online, if that has changed, and the agent's data from the `hello` of a new
        connection. A node that has just joined becomes online with its first inventory."""
        online = self._services.gateway.is_online(self.node_id)

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            if online and hello is not None:
                await tx.execute(
                    "UPDATE nodes SET boot_id = $2, agent_version = $3, agent_protocol = $4, agent_release = $5,"
                    " state_reason = NULL WHERE id = $1",
                    self.node_id,
                    hello.boot_id,
                    hello.agent_version,
                    hello.protocol,
                    hello.release,
                )
                if node.state_reason is not None:
                    await close_alert(tx, agent_alert(self.node_id))
            if online == (node.connection is NodeState.ONLINE):
                return
            if node.connection is NodeState.PENDING and (not online or node.facts is None):
                return
            if online:
                await self._come_online(tx, node)
            else:
                await tx.execute("UPDATE nodes SET state = 'offline' WHERE id = $1", self.node_id)
                await record_seen(tx, self.node_id)
                await announce(tx, replace(node, connection=NodeState.OFFLINE), NodeState.OFFLINE.value)

        await self._database.transact(work)

    async def _come_online(self, tx: Transaction, node: NodeRecord) -> NodeRecord:
        await tx.execute("UPDATE nodes SET state = 'online', connected_at = now() WHERE id = $1", self.node_id)
        await record_seen(tx, self.node_id)
        await close_alert(tx, offline_alert(self.node_id))
        node = replace(node, connection=NodeState.ONLINE)
        await announce(tx, node, NodeState.ONLINE.value)
        return node

    async def refused(self, reason: str) -> None:
        """Record why the node's agent was refused: its release is not compatible with this controller. The reason is
        shown, with an alert, until a compatible agent connects."""

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            if node.state_reason == reason or self._services.gateway.is_online(self.node_id):
                return
            await tx.execute("UPDATE nodes SET state_reason = $2 WHERE id = $1", self.node_id, reason)
            await raise_alert(
                tx,
                agent_alert(self.node_id),
                f"Node {node.name} cannot be reached. {reason}",
                resource_kind="node",
                resource_id=self.node_id,
            )
            await announce(tx, node, "refused")

        await self._database.transact(work)

    async def inventoried(self, inventory: InventoryResult, asked_at: datetime) -> None:
        """Record the host's inventory as of `asked_at`."""

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            await tx.execute(
                "UPDATE nodes SET facts = $2, inventory_at = $3 WHERE id = $1",
                self.node_id,
                inventory.facts.model_dump(mode="json"),
                asked_at,
            )
            await record_seen(tx, self.node_id, inventory.capacity)
            await self._write_domains(tx, inventory, asked_at)
            await self._write_images(tx, inventory)
            await record_volumes(tx, self.node_id, inventory, asked_at)
            if set((node.facts or {}).get("host_addresses", ())) != set(inventory.facts.host_addresses):
                await refresh_host_reservations(tx, location_id=node.location_id)
            await close_alert(tx, silent_alert(self.node_id))
            if node.connection is NodeState.PENDING and self._services.gateway.is_online(self.node_id):
                node = await self._come_online(tx, node)
            await announce(tx, node, "inventory")

        await self._database.transact(work)

    async def preflighted(self, preflight: PreflightResult) -> None:

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            await tx.execute(
                "UPDATE nodes SET preflight = $2, preflight_at = now() WHERE id = $1",
                self.node_id,
                [check.model_dump(mode="json") for check in preflight.checks],
            )
            await announce(tx, node, "preflight")

        await self._database.transact(work)

    async def network_probed(self, drift: NetworkDrift) -> bool:
        """Record the result of a network probe. Returns whether it found a difference that the previous probe had not
        found."""

        async def work(tx: Transaction) -> bool:
            node = await get_node(tx, self.node_id, lock=True)
            before = await tx.fetchval("SELECT network_probe FROM nodes WHERE id = $1", self.node_id)
            seen = drift.as_json()
            await tx.execute(
                "UPDATE nodes SET network_probe = $2, network_probed_at = now() WHERE id = $1", self.node_id, seen
            )
            known = before["differences"] if before is not None else []
            known_pairs = {(each["vm_id"], each["problem"]) for each in known}
            if drift.differences:
                message = await _drift_message(tx, node.name, drift)
                await raise_alert(
                    tx, drift_alert(self.node_id), message, resource_kind="node", resource_id=self.node_id
                )
            else:
                await close_alert(tx, drift_alert(self.node_id))
            if seen["differences"] != known:
                await announce(tx, node, "network_drift" if drift.differences else "network_agrees")
            return any((each["vm_id"], each["problem"]) not in known_pairs for each in seen["differences"])

        return await self._database.transact(work)

    async def machine_removed(self, vm_id: UUID) -> None:
        """Record that the host has removed an unrecorded machine and nothing of it is left there."""

        async def work(tx: Transaction) -> None:
            await get_node(tx, self.node_id, lock=True)
            await tx.execute("DELETE FROM observed_domains WHERE node_id = $1 AND vm_id = $2", self.node_id, vm_id)
            await forget_carried(tx, self.node_id, vm_id)

        await self._database.transact(work)

    async def unauthorised_report(self, what: str) -> None:
        """Audit a refused report about a machine or operation that is not the node's own, up to
        `MOST_UNAUTHORISED_AN_HOUR` times an hour."""
        now = trio.current_time()
        times = [when for when in self._services.unauthorised.get(self.node_id, ()) if now - when < _HOUR]
        if len(times) == MOST_UNAUTHORISED_AN_HOUR:
            log.error("node.unauthorised_reports", node_id=self.key, what=what)
            return
        self._services.unauthorised[self.node_id] = [*times, now]

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id)
            await audit.record(
                tx,
                node_itself(self.node_id, node.name, "node.report"),
                node.target,
                {"what": what},
                outcome=Outcome.DENIED,
                error_code="forbidden",
            )

        await self._database.transact(work)

    async def update(self, caller: Caller, change: NodeChange) -> None:
        """Raises conflict if the name is taken, and for a change from managed to observe."""

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            if change.mode is NodeMode.OBSERVE and node.mode is NodeMode.MANAGED:
                raise conflict(
                    f"Node {node.name} is managed and stays so.", hint="Set maintenance to keep new machines away."
                )
            given: dict[str, Any] = {name: value for name, value in vars(change).items() if value is not None}
            changed = {name: value for name, value in given.items() if getattr(node, name) != value}
            updated = replace(node, **changed)
            try:
                await tx.execute(
                    "UPDATE nodes SET name = $2, mode = $3, maintenance = $4, cpu_overcommit = $5,"
                    " memory_overcommit = $6, disk_overcommit = $7 WHERE id = $1",
                    self.node_id,
                    updated.name,
                    updated.mode.value,
                    updated.maintenance,
                    updated.cpu_overcommit,
                    updated.memory_overcommit,
                    updated.disk_overcommit,
                )
            except UniqueViolationError:
                raise conflict(f"Another node is named {updated.name}.") from None
            if "mode" in changed:
                # Pools reserve the addresses of a managed host, but not those of an observed one, so a changed mode
                # changes reservations.
                await refresh_host_reservations(tx, location_id=node.location_id)
            if changed:
                await announce(tx, updated, "updated")
            await audit.record(tx, caller, updated.target, {"changed": sorted(changed)})

        await self._database.transact(work)

    async def declare_lost(self, caller: Caller, note: str, then: Callable[[Transaction], Awaitable[None]]) -> None:
        """Record an administrator's decision that the node will not come back. From then on its machines can only be
        deleted, which is immediate and needs no node; operations that wait for the node fail. `then` runs last in the
        transaction and applies the consequences elsewhere. `then` runs also if the node was already lost, since the
        other records may come from an older backup. Raises conflict while the node is online.
        """

        async def work(tx: Transaction) -> None:
            node = await get_node(tx, self.node_id, lock=True)
            if node.lost_at is None:
                await lose(tx, node)
            await then(tx)

        async def lose(tx: Transaction, node: NodeRecord) -> None:
            if node.connection is NodeState.ONLINE or self._services.gateway.is_online(self.node_id):
                raise conflict(
                    f"Node {node.name} is online; nothing was changed.",
                    hint="Only a node that is offline can be declared lost.",
                )
            await self._services.authority.revoke(tx, self.node_id)
            lost = await tx.fetchone(
                "UPDATE nodes SET state = 'offline', lost_at = now(), state_reason = $2 WHERE id = $1"
                " RETURNING lost_at",
                self.node_id,
                f"Declared lost: {note}",
            )
            await close_alerts_about(tx, "node", self.node_id)
            await announce(tx, replace(node, connection=NodeState.OFFLINE, lost_at=lost["lost_at"]), "lost")
            await audit.record(tx, caller, node.target, {"note": note})

        await self._database.transact(work)
        self._services.authority.forget(self.node_id)
        self._services.gateway.mark_lost(self.node_id)

    async def delete(self, caller: Caller) -> None:
        """Delete the node: its certificates are revoked and its connection is closed. Raises conflict while a machine
        is placed on it."""
        async with self._database.transaction() as tx:
            node = await get_node(tx, self.node_id, lock=True)
            # The lock waits for placements that have chosen this node; those after it find the node deleted. No
            # placement that waits for this lock holds a pool that is needed here.
            await lock_capacity(tx, self.node_id)
            placed = await tx.fetchval(
                "SELECT count(*) FROM vms WHERE $1 IN (node_id, moving_to, moved_from) AND deleted_at IS NULL",
                self.node_id,
            )
            volumes = await tx.fetchval(
                "SELECT count(*) FROM volumes WHERE $1 IN (node_id, moving_to, moved_from) AND deleted_at IS NULL",
                self.node_id,
            )
            if volumes and not placed:
                raise conflict(
                    f"{volumes} volume{'s are' if volumes > 1 else ' is'} on node {node.name}.",
                    hint="Delete them first, those that were kept of deleted machines too (`svc volume list --node`).",
                    details={"volumes": volumes},
                )
            if placed:
                raise conflict(
                    f"{placed} machine{'s are' if placed > 1 else ' is'} placed on node {node.name}.",
                    hint="Delete or move them first. Those of an offline node can go once it is back or declared lost.",
                    details={"machines": placed},
                )
            await self._services.authority.revoke(tx, self.node_id)
            await tx.execute("DELETE FROM observed_domains WHERE node_id = $1", self.node_id)
            await forget_carried(tx, self.node_id)
            await tx.execute("DELETE FROM node_images WHERE node_id = $1", self.node_id)
            await tx.execute("UPDATE nodes SET state = 'offline', deleted_at = now() WHERE id = $1", self.node_id)
            await refresh_host_reservations(tx, location_id=node.location_id)
            await close_alerts_about(tx, "node", self.node_id)
            await announce(tx, replace(node, connection=NodeState.OFFLINE), "deleted")
            await audit.record(tx, caller, node.target)
        self._services.authority.forget(self.node_id)
        self._services.gateway.drop(self.node_id, "The node was deleted.")

    async def _write_domains(self, tx: Transaction, inventory: InventoryResult, asked_at: datetime) -> None:
        # Domains are indexed by uuid, because a host may list one twice.
        domains = {domain.uuid: domain for domain in inventory.domains}.values()
        await tx.execute(
            """DELETE FROM observed_domains old WHERE node_id = $1
               AND NOT EXISTS (SELECT FROM unnest($2::uuid[]) AS seen (uuid) WHERE seen.uuid = old.uuid)""",
            self.node_id,
            [domain.uuid for domain in domains],
        )
        await tx.execute(
            """
            INSERT INTO observed_domains (node_id, uuid, name, vm_id, state, vcpus, memory_mib, seen_at)
            SELECT $1, seen.*, $8
            FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::integer[], $7::integer[]) AS seen
            ON CONFLICT (node_id, uuid) DO UPDATE SET name = excluded.name, vm_id = excluded.vm_id,
                state = excluded.state, vcpus = excluded.vcpus, memory_mib = excluded.memory_mib,
                seen_at = excluded.seen_at
            """,
            self.node_id,
            [domain.uuid for domain in domains],
            [domain.name for domain in domains],
            [domain.vm_id for domain in domains],
            [domain.state.value for domain in domains],
            [domain.vcpus for domain in domains],
            [domain.memory_mib for domain in domains],
            asked_at,
        )

    async def _write_images(self, tx: Transaction, inventory: InventoryResult) -> None:
        """Record the node's image cache, without files of images that the controller does not know."""
        images = {cached.image_id: cached for cached in inventory.images}
        await tx.execute(
            """DELETE FROM node_images old WHERE node_id = $1
               AND NOT EXISTS (SELECT FROM unnest($2::uuid[]) AS seen (id) WHERE seen.id = old.image_id)""",
            self.node_id,
            list(images),
        )
        await note_cached(tx, self.node_id, list(images.values()))


def offline_alert(node_id: UUID) -> str:
    return f"node-offline:{node_id}"


def silent_alert(node_id: UUID) -> str:
    return f"node-silent:{node_id}"


def agent_alert(node_id: UUID) -> str:
    return f"node-agent:{node_id}"


def upgrade_alert(node_id: UUID) -> str:
    return f"node-upgrade:{node_id}"


def drift_alert(node_id: UUID) -> str:
    return f"network-drift:{node_id}"


async def _drift_message(tx: Transaction, node: str, drift: NetworkDrift) -> str:
    """Names a few of the machines that differ, with the first problem of each."""
    rows = await tx.fetch(
        "SELECT id, name FROM vms WHERE id = ANY($1::uuid[])", [each.vm_id for each in drift.differences if each.vm_id]
    )
    names: dict[UUID | None, str] = {row["id"]: row["name"] for row in rows}
    first = {each.vm_id: each.problem for each in reversed(drift.differences)}
    told = [f"{names.get(vm_id, vm_id or 'the host')}: {first[vm_id]}" for vm_id in list(first)[:_MOST_NAMED]]
    more = f" And {len(first) - _MOST_NAMED} more." if len(first) > _MOST_NAMED else ""
    return f"The networks on node {node} are not as recorded. {' '.join(told)}{more}"
