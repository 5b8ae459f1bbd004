"""Background work about nodes: inventories, live figures, and alerts about nodes that stay away.

Invariants:

- a heartbeat costs no write: the gateway holds the live figures, which are stored in one batch a minute;
- an inventory is taken at every connect and every ten minutes after, a few nodes at a time; a host that does not answer
  gets an alert and delays no other;
- nodes are looked at in parallel, each with its own deadline: a node whose record is locked delays no other;
- when a thousand nodes come back together, their work waits in queues here and not for connections of the database:
  only a limited number of nodes is looked at, inventoried and recorded (`machine_reports`) at once;
- reports that could not be recorded (the database was away) are requested again as soon as possible;
- nodes that were online when the controller stopped are recorded as offline only after they have had time to come back.

Rejected: processing one node after the other, without a deadline for each. Because of one locked row of a machine,
unrelated nodes that were gone stayed recorded as online.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import Severity, raise_alert
from svc_actors.controller.gateway.gateway import Gateway, GatewayHooks, NodeUnavailable, OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.observing import MachineReport
from svc_actors.controller.nodes.disks import NodeDisks
from svc_actors.controller.nodes.live_figures import for_nodes, record_live_figures
from svc_actors.controller.nodes.node import Node, offline_alert, silent_alert
from svc_actors.controller.reconcile.machine_reports import Deliver, MachineReports
from svc_actors.controller.reconcile.node_queue import NodeQueue
from svc_actors.controller.tasks.runner import TaskRun, TaskRunner
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, LoopAlert, Record, Transaction, keep_repeating
from svc_common.errors import ServiceError
from svc_nodeagent.protocol import (
    Capacity,
    Hello,
    InventoryResult,
    NodeInventory,
    NodePreflight,
    OperationId,
    OperationResult,
    PreflightResult,
)

INVENTORY_TIMEOUT: Final = 60.0
PREFLIGHT_TIMEOUT: Final = 180.0
_LOOKS_AT_ONCE: Final = 32
"""How many nodes are looked at concurrently; each look is a transaction of the node's actor. Enough that a few locked
rows do not hold up the other nodes; few enough that a thousand nodes that leave together do not wait for every
connection of the database."""
_COMPLAINTS_AT_ONCE: Final = 4
_MOST_COMPLAINTS: Final = 64
"""The most complaints about one node that wait to be recorded: more than the node may add to the audit in an hour."""
log = structlog.get_logger(__name__)


def machine_deliverer(system: ActorSystem) -> Deliver:
    """Delivers to a machine through its actor. The caller waits until the machine has recorded the report, so the
    number of deliveries under way is limited to what the database can record."""

    async def deliver(node_id: UUID, vm_id: UUID, seen: MachineReport, asked_at: datetime | None) -> object:
        machine = system.ref(Machine, str(vm_id))
        return await machine.ask(
            Machine.observed, node_id, seen.state, seen.reason, cause=seen.cause, rescue=seen.rescue, asked_at=asked_at
        )

    return deliver


Complaint = tuple[Callable[[Node, str], Awaitable[None]], str]
"""What the gateway reports against a node: a message to the node's actor, and the reason."""
NodeCall = Callable[[UUID], None]
Probe = Callable[[UUID], Awaitable[None]]


async def _no_probe(_: UUID) -> None:
    await trio.lowlevel.checkpoint()


Forgettable = Callable[[Sequence[OperationId]], Awaitable[list[OperationId]]]
"""Given the operations that an agent still keeps, returns those whose outcome no task needs."""


@dataclass(frozen=True)
class Intervals:
    """Seconds."""

    grace: float = 30.0
    """After a start of the controller: how long nodes recorded as online have to come back."""
    look: float = 10.0
    record: float = 60.0
    inventory: float = 600.0
    alert_after: float = 60.0
    look_deadline: float = 5.0
    """For recording the presence of one node, or what an inventory reports about one machine."""
    inspection_deadline: float = 300.0
    """For one node's inventory, probe and first preflight together, so that no worker is held for ever."""
    workers: int = 16


class NodeWatch:
    """One per process. `hooks` go to the gateway; the gateway is set by `watch` before `run`. `connected` is called at
    once for every connection; `probe` asks a node for its networks, after each inventory."""

    def __init__(
        self,
        system: ActorSystem,
        database: Database,
        deliver: Deliver,
        *,
        forgettable: Forgettable | None = None,
        connected: NodeCall = lambda _: None,
        probe: Probe = _no_probe,
        intervals: Intervals | None = None,
        alert: LoopAlert | None = None,
    ) -> None:
        self._alert = alert
        self._system = system
        self._database = database
        self._forgettable = forgettable
        self._connected = connected
        self._probe = probe
        self._intervals = intervals or Intervals()
        self._gateway: Gateway | None = None
        self._asked: dict[UUID, float] = {}
        self._inspections = NodeQueue[Hello | None]()
        self._looks = NodeQueue[Hello | None]()
        self._complaints = NodeQueue[tuple[Complaint, ...]]()
        self._reports = MachineReports(system, database, deliver, self.recheck, deadline=self._intervals.look_deadline)
        self._disks = NodeDisks(database)

    def watch(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            raise LookupError("NodeWatch was not given its gateway")
        return self._gateway

    @property
    def heard(self) -> bool:
        """Whether every reported change of a machine is recorded."""
        return self._reports.idle

    @property
    def hooks(self) -> GatewayHooks:
        def connected(node_id: UUID, hello: Hello) -> None:
            # Queued, since hooks must not block: the lookers record the node's presence, the inspectors take its
            # inventory.
            self._looks.put(node_id, hello)
            self._enqueue(node_id, hello)
            self._connected(node_id)

        def disconnected(node_id: UUID) -> None:
            # A hello that still waits in the queue is kept: its contents are recorded even if the node has disconnected
            # again.
            self._looks.put(node_id, self._looks.get(node_id))

        def refused(node_id: UUID, reason: str) -> None:
            tell(node_id, Node.refused, reason)

        def unauthorised_report(node_id: UUID, what: str) -> None:
            tell(node_id, Node.unauthorised_report, what)

        def tell(node_id: UUID, message: Callable[[Node, str], Awaitable[None]], text: str) -> None:
            waiting = self._complaints.get(node_id) or ()
            if len(waiting) < _MOST_COMPLAINTS:
                self._complaints.put(node_id, (*waiting, (message, text)))
            else:
                log.warning("node.not_told", node_id=str(node_id), error=f"{len(waiting)} messages wait")

        return GatewayHooks(
            connected=connected,
            disconnected=disconnected,
            domain_changed=self._reports.changed,
            refused=refused,
            unauthorised_report=unauthorised_report,
        )

    def handle_tasks(self, tasks: TaskRunner) -> None:
        """Register the work of the tasks `node.inventory` and `node.preflight`."""
        tasks.handles("node.inventory", self._inventory_task)
        tasks.handles("node.preflight", self._preflight_task)

    def recheck(self, node_id: UUID) -> None:
        """Take an inventory of this node at the next look at all nodes, even if its last inventory is recent."""
        self._asked.pop(node_id, None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._intervals.workers):
                nursery.start_soon(self._inspect_for_ever)
            for _ in range(_LOOKS_AT_ONCE):
                nursery.start_soon(self._look_for_ever)
            for _ in range(_COMPLAINTS_AT_ONCE):
                nursery.start_soon(self._complain_for_ever)
            nursery.start_soon(self._reports.run)
            nursery.start_soon(keep_repeating, "live figures", self._intervals.record, self.record, self._alert)
            nursery.start_soon(
                partial(keep_repeating, first_after=self._intervals.grace),
                "node watch",
                self._intervals.look,
                self._look_and_enqueue,
                self._alert,
            )
            nursery.start_soon(keep_repeating, "disk watch", self._intervals.look, self.look_at_disks, self._alert)
            task_status.started()

    async def record(self) -> None:
        """Store the live figures of every connected node: in its row, and in the mean of the hour."""
        said = self._said()

        async def record_some(nodes: Sequence[UUID]) -> None:
            beats = [(node_id, said[node_id]) for node_id in nodes]
            await self._database.transact(partial(record_live_figures, beats=beats))

        await for_nodes("live figures", list(said), record_some)

    async def look_at_disks(self) -> None:
        """Raise alerts about connected nodes whose disks fill up; these nodes then take no new machines."""
        await self._disks.update_levels(self._said())

    def _said(self) -> dict[UUID, Capacity]:
        """The resources that each connected node reported last."""
        beats = ((node_id, self.gateway.heartbeat(node_id)) for node_id in self.gateway.online())
        return {node_id: beat.capacity for node_id, beat in beats if beat is not None}

    async def look(self) -> None:
        """Correct which nodes are recorded as online, and raise alerts about nodes that have been away for long. As a
        rule the hooks have recorded this at once; this look covers what they missed, and nodes that never connected
        after a start."""
        rows = await self._database.fetch(
            "SELECT id, state FROM nodes WHERE deleted_at IS NULL AND (state = 'online' OR id = ANY($1::uuid[]))",
            self.gateway.online(),
        )
        at_once = trio.CapacityLimiter(_LOOKS_AT_ONCE)

        async def look_at(node_id: UUID) -> None:
            async with at_once:
                await self._look_at(node_id)

        # Only nodes whose record disagrees with the gateway are read: as a rule none.
        async with trio.open_nursery() as nursery:
            for row in rows:
                if (row["state"] == "online") != self.gateway.is_online(row["id"]):
                    nursery.start_soon(look_at, row["id"])
        await self._database.transact(self._alert_of_those_away)

    async def _alert_of_those_away(self, tx: Transaction) -> None:
        away = await tx.fetch(
            """
            SELECT id, name, seen_at FROM nodes
             WHERE state = 'offline' AND lost_at IS NULL AND deleted_at IS NULL AND NOT maintenance
               AND seen_at < now() - make_interval(secs => $1)
               AND NOT EXISTS (SELECT 1 FROM alerts
                                WHERE key = 'node-offline:' || nodes.id::text AND closed_at IS NULL)
            """,
            self._intervals.alert_after,
        )
        for row in away:
            await raise_alert(
                tx,
                offline_alert(row["id"]),
                f"Node {row['name']} is offline since {row['seen_at']:%Y-%m-%d %H:%M} UTC.",
                severity=Severity.CRITICAL,
                resource_kind="node",
                resource_id=row["id"],
            )

    async def _look_for_ever(self) -> None:
        while True:
            async with self._looks.next() as (node_id, hello):
                # The node's record was locked. The node goes to the end of the queue, with its newest hello.
                if not await self._look_at(node_id, hello):
                    self._looks.put(node_id, self._looks.get(node_id) or hello)

    async def _complain_for_ever(self) -> None:
        while True:
            async with self._complaints.next() as (node_id, complaints):
                for message, text in complaints:
                    try:
                        await self._system.ref(Node, str(node_id)).ask(message, text)
                    except DomainError as error:
                        log.warning("node.not_told", node_id=str(node_id), error=str(error))

    async def _look_at(self, node_id: UUID, hello: Hello | None = None) -> bool:
        """False if the node's record was locked for too long, so that the look must be repeated. After other failures
        the next look at all nodes tries again."""
        with trio.move_on_after(self._intervals.look_deadline) as late:
            try:
                await self._system.ref(Node, str(node_id)).ask(Node.look, hello)
            except DomainError as error:
                log.warning("node.not_looked_at", node_id=str(node_id), error=str(error))
        if late.cancelled_caught:
            log.warning("node.not_looked_at", node_id=str(node_id), error="its record is held by somebody else")
        return not late.cancelled_caught

    async def inspect(self, node_id: UUID) -> None:
        """Take an inventory of a node now, record it, and deliver differences to its machines. Raises what a query
        raises."""
        # Taken before the host is asked, and from the database's clock: reports about a machine that arrive while the
        # host answers must count as newer.
        asked_at: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        self._asked[node_id] = trio.current_time()
        result = await self.gateway.query(node_id, NodeInventory(), timeout=INVENTORY_TIMEOUT)
        if isinstance(result, InventoryResult):
            await self._reports.inventoried(node_id, result, asked_at)

    async def _inspect_for_ever(self) -> None:
        while True:
            async with self._inspections.next() as (node_id, hello):
                await self._inspect_in_time(node_id, hello)

    async def _inspect_in_time(self, node_id: UUID, hello: Hello | None) -> None:
        try:
            with trio.move_on_after(self._intervals.inspection_deadline) as late:
                # The probe comes after the inventory: `orphans` judges machines without a record by both, and the
                # inventory must be recorded by then.
                if hello is not None:
                    await self._forget(node_id, hello)
                await self.inspect(node_id)
                await self._probe(node_id)
                await self._first_preflight(node_id)
            if late.cancelled_caught:
                log.warning("node.inspection_overdue", node_id=str(node_id))
                self.recheck(node_id)
        except (NodeUnavailable, OperationFailed) as error:
            # A node that went offline meanwhile gets its own alert. The alert raised here is only for a connected agent
            # whose host does not answer.
            log.warning("node.not_inspected", node_id=str(node_id), error=str(error))
            if self.gateway.is_online(node_id):
                await self._raise_silent(node_id, str(error))
        except DomainError as error:
            # This failure is the controller's, not the host's, so no alert is raised about the host.
            log.warning("node.not_recorded", node_id=str(node_id), error=str(error))
            self.recheck(node_id)
        except Exception:
            # A defect in handling this node must not end the inspection of the others. This node is inspected again
            # when its next inventory is due.
            log.exception("node.inspection_failed", node_id=str(node_id))

    async def _forget(self, node_id: UUID, hello: Hello) -> None:
        if self._forgettable is not None and hello.unacknowledged:
            for operation_id in await self._forgettable(hello.unacknowledged):
                await self.gateway.acknowledge(node_id, operation_id)

    async def _first_preflight(self, node_id: UUID) -> None:
        # The preflight runs without an order only once in a node's life, after its first inventory: it may take three
        # minutes. Later preflights are ordered by an administrator.
        if await self._database.fetchval("SELECT preflight_at IS NULL FROM nodes WHERE id = $1", node_id):
            operation = NodePreflight(controller_time=datetime.now(UTC))
            result = await self.gateway.query(node_id, operation, timeout=PREFLIGHT_TIMEOUT)
            if isinstance(result, PreflightResult):
                await self._system.ref(Node, str(node_id)).ask(Node.preflighted, result)

    async def _raise_silent(self, node_id: UUID, error: str) -> None:
        async def work(tx: Transaction) -> Record | None:
            node = await tx.fetchrow(
                "SELECT name, inventory_at FROM nodes WHERE id = $1 AND deleted_at IS NULL", node_id
            )
            if node is not None:
                message = f"Node {node['name']} is connected, but its host does not answer: {error}"
                await raise_alert(tx, silent_alert(node_id), message, resource_kind="node", resource_id=node_id)
            return node

        try:
            node = await self._database.transact(work)
            if node is not None and node["inventory_at"] is None:
                # Without a first inventory the node gets no machines, so it is inspected again soon.
                self.recheck(node_id)
        except ServiceError as unavailable:
            log.warning("node.alert_not_stored", node_id=str(node_id), error=unavailable.message)

    async def _inventory_task(self, run: TaskRun) -> OperationResult | None:
        asked_at: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        result = await run.perform(NodeInventory(), step="inventory", timeout=INVENTORY_TIMEOUT)
        if isinstance(result, InventoryResult):
            await self._reports.inventoried(run.task.resource_id, result, asked_at)
            await self._probe(run.task.resource_id)
            await run.log(f"{len(result.domains)} domains, {len(result.images)} images", percent=100)
        return result

    async def _preflight_task(self, run: TaskRun) -> OperationResult | None:
        operation = NodePreflight(controller_time=datetime.now(UTC))
        result = await run.perform(operation, step="preflight", timeout=PREFLIGHT_TIMEOUT)
        if isinstance(result, PreflightResult):
            await self._system.ref(Node, str(run.task.resource_id)).ask(Node.preflighted, result)
            for check in result.checks:
                await run.log(f"{check.name}: {check.status.value}: {check.message}")
        return result

    async def _look_and_enqueue(self) -> None:
        await self.look()
        now = trio.current_time()
        online = set(self.gateway.online())
        self._asked = {node_id: when for node_id, when in self._asked.items() if node_id in online}
        for node_id in online:
            # Due after 0.9 to 1.1 of the interval, depending on the node's id: otherwise nodes that came back together
            # would be inspected together for ever.
            due = self._intervals.inventory * (0.9 + node_id.int % 1000 / 5000)
            if now - self._asked.get(node_id, -due) >= due:
                self._enqueue(node_id, None)

    def _enqueue(self, node_id: UUID, hello: Hello | None) -> None:
        self._inspections.put(node_id, hello or self._inspections.get(node_id))
