"""What is done about nodes in the background: inventories, live figures, and noticing who stays away.

Invariants:

- a heartbeat costs no write: live figures are the gateway's, one batch a minute keeps them;
- an inventory is taken at every connect and every ten minutes after, a few nodes at a time; a host that does not answer
  gets an alert and holds up no other;
- nodes are looked at side by side, each with its own deadline: one whose record is locked holds up no other;
- machines are told what their hosts say, never waited for, and only where the records say otherwise;
- what could not be recorded (the database was away) is asked for again as soon as it can be;
- nodes that were online when the controller stopped are called offline only after they had time to come back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import Severity, raise_alert
from svc_actors.controller.gateway.gateway import Gateway, GatewayHooks, NodeUnavailable, OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.nodes.live_figures import record_live_figures
from svc_actors.controller.nodes.node import Node, Observe, offline_alert, silent_alert
from svc_actors.controller.reconcile.inventory import Difference, compare, concerned_machines
from svc_actors.controller.tasks.runner import TaskRun, TaskRunner
from svc_actors.errors import ServiceError
from svc_actors.runtime import ActorSystem, DeliveryError, DomainError
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import (
    DomainChanged,
    DomainState,
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
DELIVERIES_AT_ONCE: Final = 16
"""Each is a transaction of its machine's actor. Of all nodes together."""
_LOOKS_AT_ONCE: Final = 32
"""Each look is a transaction of its node's actor: enough that a few locked rows hold up no other, and few enough that a
thousand nodes which leave together do not queue for every connection of the database."""
log = structlog.get_logger(__name__)


def machine_observer(system: ActorSystem) -> Observe:
    """Tells machines what hosts say of them. Nobody waits: a machine that hangs holds up no node and no other."""

    def observe(node_id: UUID, vm_id: UUID, state: DomainState, reason: str, asked_at: datetime | None) -> None:
        system.ref(Machine, str(vm_id)).tell(Machine.observed, node_id, state, reason, asked_at=asked_at)

    return observe


Deliver = Callable[[UUID, UUID, DomainState, str, datetime], Awaitable[object]]
"""`await deliver(node_id, vm_id, state, reason, asked_at)`: as `Observe`, but returns once the machine has recorded
it."""


def machine_deliverer(system: ActorSystem) -> Deliver:
    """The same for an inventory, which may have thousands of machines to tell at once (a host that was started again):
    whoever delivers waits, so that no more are told at a time than the database records."""

    async def deliver(node_id: UUID, vm_id: UUID, state: DomainState, reason: str, asked_at: datetime) -> object:
        machine = system.ref(Machine, str(vm_id))
        return await machine.ask(Machine.observed, node_id, state, reason, asked_at=asked_at)

    return deliver


NodeCall = Callable[[UUID], None]
Probe = Callable[[UUID], Awaitable[None]]


async def _no_probe(_: UUID) -> None:
    await trio.lowlevel.checkpoint()


Forgettable = Callable[[Sequence[OperationId]], Awaitable[list[OperationId]]]
"""Of the operations an agent still keeps, those whose outcome nobody wants any more."""


@dataclass(frozen=True)
class Intervals:
    """Seconds."""

    grace: float = 30.0
    """After a start: how long nodes recorded as online have to come back."""
    look: float = 10.0
    record: float = 60.0
    inventory: float = 600.0
    alert_after: float = 60.0
    look_deadline: float = 5.0
    """For recording the presence of one node, or what an inventory says of one machine."""
    inspection_deadline: float = 300.0
    """For one node's inventory, probe and first preflight together, so that no worker is held for ever."""
    workers: int = 16


class NodeWatch:
    """One a process. `hooks` go to the gateway, which is given by `watch` before `run`. `connected` is told of every
    connection, at once; `probe` asks a node for its networks, after each inventory."""

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
    ) -> None:
        self._system = system
        self._database = database
        self._deliver = deliver
        self._delivering = trio.CapacityLimiter(DELIVERIES_AT_ONCE)
        self._forgettable = forgettable
        self._connected = connected
        self._probe = probe
        self._intervals = intervals or Intervals()
        self._gateway: Gateway | None = None
        self._asked: dict[UUID, float] = {}
        self._waiting: dict[UUID, Hello | None] = {}
        self._work = trio.Event()

    def watch(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def gateway(self) -> Gateway:
        if self._gateway is None:
            raise LookupError("NodeWatch was not given its gateway")
        return self._gateway

    @property
    def hooks(self) -> GatewayHooks:
        def connected(node_id: UUID, hello: Hello) -> None:
            self._tell(node_id, lambda: self._system.ref(Node, str(node_id)).tell(Node.look, hello.boot_id))
            self._enqueue(node_id, hello)
            self._connected(node_id)

        def disconnected(node_id: UUID) -> None:
            self._tell(node_id, lambda: self._system.ref(Node, str(node_id)).tell(Node.look))

        def domain_changed(node_id: UUID, change: DomainChanged) -> None:
            if not self._tell(node_id, lambda: self._system.ref(Node, str(node_id)).tell(Node.domain_changed, change)):
                self.recheck(node_id)

        def unauthorised_report(node_id: UUID, what: str) -> None:
            self._tell(node_id, lambda: self._system.ref(Node, str(node_id)).tell(Node.unauthorised_report, what))

        return GatewayHooks(
            connected=connected,
            disconnected=disconnected,
            domain_changed=domain_changed,
            unauthorised_report=unauthorised_report,
        )

    def handle_tasks(self, tasks: TaskRunner) -> None:
        """The work of tasks `node.inventory` and `node.preflight`."""
        tasks.handles("node.inventory", self._inventory_task)
        tasks.handles("node.preflight", self._preflight_task)

    def recheck(self, node_id: UUID) -> None:
        """Take an inventory of this node at the next look, however recent the last one is."""
        self._asked.pop(node_id, None)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(self._intervals.workers):
                nursery.start_soon(self._inspect_for_ever)
            nursery.start_soon(self._every, self._intervals.record, self.record)
            nursery.start_soon(self._look_around)
            task_status.started()

    async def record(self) -> None:
        """Keep the live figures of every connected node: the row's, and the hour's mean."""
        beats = [
            (node_id, beat.capacity)
            for node_id in self.gateway.online()
            if (beat := self.gateway.heartbeat(node_id)) is not None
        ]

        async def work(tx: Transaction) -> None:
            await record_live_figures(tx, beats)

        await self._database.transact(work)

    async def look(self) -> None:
        """Set right what the record says of who is online, and raise alerts for who has been away for long."""
        rows = await self._database.fetch(
            "SELECT id, state FROM nodes WHERE deleted_at IS NULL AND (state = 'online' OR id = ANY($1::uuid[]))",
            self.gateway.online(),
        )
        at_once = trio.CapacityLimiter(_LOOKS_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for row in rows:
                if (row["state"] == "online") != self.gateway.is_online(row["id"]):
                    nursery.start_soon(self._look_at, row["id"], at_once)
        async with self._database.transaction() as tx:
            away = await tx.fetch(
                """
                SELECT id, name, seen_at FROM nodes
                 WHERE state = 'offline' AND deleted_at IS NULL AND NOT maintenance
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

    async def _look_at(self, node_id: UUID, at_once: trio.CapacityLimiter) -> None:
        async with at_once:
            with trio.move_on_after(self._intervals.look_deadline) as late:
                try:
                    await self._system.ref(Node, str(node_id)).ask(Node.look)
                except DomainError as error:
                    log.warning("node.not_looked_at", node_id=str(node_id), error=str(error))
            if late.cancelled_caught:
                log.warning("node.not_looked_at", node_id=str(node_id), error="its record is held by somebody else")

    async def inspect(self, node_id: UUID) -> None:
        """Take an inventory of a node now, record it, and tell its machines. Raises what a query raises."""
        asked_at: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        self._asked[node_id] = trio.current_time()
        result = await self.gateway.query(node_id, NodeInventory(), timeout=INVENTORY_TIMEOUT)
        if isinstance(result, InventoryResult):
            await self._take_in(node_id, result, asked_at)

    async def _take_in(self, node_id: UUID, inventory: InventoryResult, asked_at: datetime) -> None:
        node = self._system.ref(Node, str(node_id))
        known = {
            row["vm_id"]
            for row in await self._database.fetch("SELECT vm_id FROM observed_domains WHERE node_id = $1", node_id)
        }
        await node.ask(Node.inventoried, inventory, asked_at)
        reported = {domain.vm_id: domain.state for domain in inventory.domains if domain.vm_id is not None}
        compared = compare(node_id, await concerned_machines(self._database, node_id, reported), reported)
        async with trio.open_nursery() as nursery:
            for each in compared.differences:
                nursery.start_soon(self._tell_machine, node_id, each, asked_at)
        for vm_id in compared.foreign:
            if vm_id not in known:
                await node.ask(Node.unauthorised_report, f"has a domain of machine {vm_id}, which is not placed on it")

    async def _tell_machine(self, node_id: UUID, difference: Difference, asked_at: datetime) -> None:
        """A machine that takes no messages, or takes its time, holds up no other: what it has not heard now it hears
        later, or of the next inventory."""
        async with self._delivering:
            with trio.move_on_after(self._intervals.look_deadline):
                try:
                    await self._deliver(node_id, difference.vm_id, difference.state, difference.reason, asked_at)
                except DomainError as error:
                    vm_id = str(difference.vm_id)
                    log.warning("node.machine_not_told", node_id=str(node_id), vm_id=vm_id, error=str(error))

    async def _inspect_for_ever(self) -> None:
        while True:
            while not self._waiting:
                await self._work.wait()
            node_id = next(iter(self._waiting))
            hello = self._waiting.pop(node_id)
            if not self._waiting:
                self._work = trio.Event()
            try:
                with trio.move_on_after(self._intervals.inspection_deadline) as late:
                    if hello is not None:
                        await self._forget(node_id, hello)
                    await self.inspect(node_id)
                    await self._probe(node_id)
                    await self._first_preflight(node_id)
                if late.cancelled_caught:
                    log.warning("node.inspection_overdue", node_id=str(node_id))
                    self.recheck(node_id)
            except (NodeUnavailable, OperationFailed) as error:
                log.warning("node.not_inspected", node_id=str(node_id), error=str(error))
                if self.gateway.is_online(node_id):
                    await self._raise_silent(node_id, str(error))
            except DomainError as error:
                # Ours, not the host's.
                log.warning("node.not_recorded", node_id=str(node_id), error=str(error))
                self.recheck(node_id)
            except Exception:
                # A defect over one node: the others are inspected, and this one again in its turn.
                log.exception("node.inspection_failed", node_id=str(node_id))

    async def _forget(self, node_id: UUID, hello: Hello) -> None:
        if self._forgettable is not None and hello.unacknowledged:
            for operation_id in await self._forgettable(hello.unacknowledged):
                await self.gateway.acknowledge(node_id, operation_id)

    async def _first_preflight(self, node_id: UUID) -> None:
        if await self._database.fetchval("SELECT preflight_at IS NULL FROM nodes WHERE id = $1", node_id):
            operation = NodePreflight(controller_time=datetime.now(UTC))
            result = await self.gateway.query(node_id, operation, timeout=PREFLIGHT_TIMEOUT)
            if isinstance(result, PreflightResult):
                await self._system.ref(Node, str(node_id)).ask(Node.preflighted, result)

    async def _raise_silent(self, node_id: UUID, error: str) -> None:
        try:
            async with self._database.transaction() as tx:
                node = await tx.fetchrow(
                    "SELECT name, inventory_at FROM nodes WHERE id = $1 AND deleted_at IS NULL", node_id
                )
                if node is None:
                    return
                message = f"Node {node['name']} is connected, but its host does not answer: {error}"
                await raise_alert(tx, silent_alert(node_id), message, resource_kind="node", resource_id=node_id)
            if node["inventory_at"] is None:
                self.recheck(node_id)  # It takes no machines before its first inventory.
        except ServiceError as unavailable:
            log.warning("node.alert_not_stored", node_id=str(node_id), error=unavailable.message)

    async def _inventory_task(self, run: TaskRun) -> OperationResult | None:
        asked_at: datetime = await self._database.fetchval("SELECT clock_timestamp()")
        result = await run.perform(NodeInventory(), step="inventory", timeout=INVENTORY_TIMEOUT)
        if isinstance(result, InventoryResult):
            await self._take_in(run.task.resource_id, result, asked_at)
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

    async def _look_around(self) -> None:
        await trio.sleep(self._intervals.grace)
        await self._every(self._intervals.look, self._look_and_enqueue, at_once=True)

    async def _look_and_enqueue(self) -> None:
        await self.look()
        now = trio.current_time()
        online = set(self.gateway.online())
        self._asked = {node_id: when for node_id, when in self._asked.items() if node_id in online}
        for node_id in online:
            # Spread by the id, so that nodes which came back together are not asked together for ever.
            due = self._intervals.inventory * (0.9 + node_id.int % 1000 / 5000)
            if now - self._asked.get(node_id, -due) >= due:
                self._enqueue(node_id, None)

    async def _every(self, seconds: float, do: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
        while True:
            if not at_once:
                await trio.sleep(seconds)
            at_once = False
            try:
                await do()
            except DomainError as error:
                log.warning("node.watch_interrupted", error=str(error))
            except Exception:
                # A defect in one round: the watch, and the controller with it, goes on.
                log.exception("node.watch_failed")

    def _enqueue(self, node_id: UUID, hello: Hello | None) -> None:
        self._waiting[node_id] = hello or self._waiting.get(node_id)
        self._work.set()

    def _tell(self, node_id: UUID, tell: Callable[[], None]) -> bool:
        """A message that is not taken is not lost for good: the next look and the next inventory say it again."""
        try:
            tell()
        except DeliveryError as error:
            log.warning("node.not_told", node_id=str(node_id), error=str(error))
            return False
        return True
