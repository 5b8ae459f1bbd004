"""Records nodes' reports about machines, many at once: inventories, and changes as they happen.

Invariants:
- a node's inventory takes a few statements, and so do the changes that have come from all nodes within 50 ms. Only a
  limited number is recorded concurrently; the rest waits here without occupying a connection of the database, because
  other background work needs connections as well;
- if changes come faster than they are recorded, only the last change of each machine counts; if a node reports too many
  changes, only its inventories count;
- a report about a machine whose record is locked goes through the machine's actor, and delays no other report. Until it
  is recorded, later reports about this machine go through the actor, too, so that none overtakes an earlier one;
- a report that could not be recorded is replaced by another inventory of the node.

Rejected: recording a later report at once while an earlier one waits in the actor. The earlier one was then recorded
last and undid the later one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.allowance import Allowances
from svc_actors.controller.machines.observing import MachineReport, record_observations
from svc_actors.controller.nodes.domains import note_domain_changes
from svc_actors.controller.nodes.node import Node
from svc_actors.controller.reconcile.inventory import ReportedMachine, compare, concerned_machines
from svc_actors.controller.reconcile.node_queue import NodeQueue
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainChanged, InventoryResult

NODES_AT_ONCE: Final = 4
"""How many nodes' reports are recorded at the same time: half of the connections that background work has."""
DELIVERIES_AT_ONCE: Final = 16
"""How many reports, of all nodes together, go through machines' actors at the same time."""
_MACHINES_AT_ONCE: Final = 500
"""How many machines are recorded in one transaction. It takes some tens of milliseconds, and their rows are locked for
that time."""
_CHANGES_PERIOD: Final = 0.05
"""Seconds from one recording of changes to the next. A single change is recorded at once. In a stream of creations each
recording takes all changes that have come meanwhile: a recording for every change would cost a sixth as much as the
creations themselves."""
_NODES_TOGETHER: Final = 64
"""The number of nodes whose changes are recorded in one go."""
_MOST_WAITING: Final = 4096
"""The most changes of one node that wait. An honest host has fewer; what is dropped here is in the node's next
inventory."""
MOST_CHANGES_A_MINUTE: Final = 3_000.0
"""The rate for one node, and also the most changes at once: a host that starts and stops 500 guests stays below it.
Each change is an event for all who watch, so changes beyond this rate, which only a hostile node reports, are left to
its inventories."""
log = structlog.get_logger(__name__)

Deliver = Callable[[UUID, UUID, MachineReport, datetime | None], Awaitable[object]]
"""`await deliver(node_id, vm_id, seen, asked_at)`: deliver to a machine what its host reports, and return once the
machine has recorded it. `asked_at` is given for an inventory, which describes the past. A machine that is not placed on
that node ignores it."""


class MachineReports:
    """One per process; `run` runs in the composer's nursery. `recheck` requests another inventory of a node soon;
    `deadline` is how long a machine's actor may take, in seconds."""

    def __init__(
        self,
        system: ActorSystem,
        database: Database,
        deliver: Deliver,
        recheck: Callable[[UUID], None],
        *,
        deadline: float,
    ) -> None:
        self._system = system
        self._database = database
        self._deliver = deliver
        self._recheck = recheck
        self._deadline = deadline
        self._changes = NodeQueue[dict[UUID, MachineReport]]()
        self._allowances = Allowances(per_minute=MOST_CHANGES_A_MINUTE)
        self._being_told = Counter[UUID]()
        self._recording = trio.CapacityLimiter(NODES_AT_ONCE)
        self._delivering = trio.CapacityLimiter(DELIVERIES_AT_ONCE)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._record_changes_for_ever, nursery)
            task_status.started()

    @property
    def idle(self) -> bool:
        """Whether every change that has come is recorded."""
        return self._changes.idle and not self._being_told

    def changed(self, node_id: UUID, change: DomainChanged) -> None:
        """A guest on this host has changed its state. Does not block; `run` records the change."""
        changes = self._changes.get(node_id) or {}
        too_many = len(changes) >= _MOST_WAITING and change.vm_id not in changes
        if too_many or not self._allowances.spend(node_id):
            self._recheck(node_id)
            return
        changes[change.vm_id] = MachineReport(node_id, change.state, change.reason, change.cause)
        self._changes.put(node_id, changes)

    async def inventoried(self, node_id: UUID, inventory: InventoryResult, asked_at: datetime) -> None:
        """Record the host's inventory as of `asked_at`, and the changes of machines that follow from it."""
        node = self._system.ref(Node, str(node_id))
        # Read before the new inventory replaces it, so that a foreign domain is reported once and not with every
        # inventory.
        known = {
            row["vm_id"]
            for row in await self._database.fetch("SELECT vm_id FROM observed_domains WHERE node_id = $1", node_id)
        }
        await node.ask(Node.inventoried, inventory, asked_at)
        reported = {
            domain.vm_id: ReportedMachine(domain.state, domain.cause, domain.rescue)
            for domain in inventory.domains
            if domain.vm_id is not None
        }
        # The records are read within the limit, too: read before waiting for it, they would be older when they are
        # used.
        async with self._recording:
            compared = compare(node_id, await concerned_machines(self._database, node_id, reported), reported)
            seen = {
                each.vm_id: MachineReport(node_id, each.state, each.reason, each.cause, each.rescue)
                for each in compared.differences
            }
            passed_over = await self._record(seen, asked_at)
        async with trio.open_nursery() as nursery:
            for vm_id in passed_over:
                nursery.start_soon(self._tell_machine, vm_id, seen[vm_id], asked_at)
        for vm_id in compared.foreign:
            if vm_id not in known:
                await node.ask(Node.unauthorised_report, f"has a domain of machine {vm_id}, which is not placed on it")

    async def _record(self, seen: Mapping[UUID, MachineReport], asked_at: datetime | None) -> set[UUID]:
        """Record all; returns the machines that were skipped."""
        recorded: set[UUID] = set()
        vm_ids = sorted(seen)
        for start in range(0, len(vm_ids), _MACHINES_AT_ONCE):
            some = {vm_id: seen[vm_id] for vm_id in vm_ids[start : start + _MACHINES_AT_ONCE]}
            recorded |= await self._database.transact(partial(record_observations, seen=some, asked_at=asked_at))
        return set(seen) - recorded

    async def _record_changes_for_ever(self, nursery: trio.Nursery) -> None:
        while True:
            # `_being_told` is updated before this block ends, because only after it another worker may take the next
            # changes of these nodes.
            async with self._changes.next_few(_NODES_TOGETHER) as changes:
                began = trio.current_time()
                for vm_id, seen in await self._record_changes(changes):
                    self._being_told[vm_id] += 1
                    nursery.start_soon(self._tell_in_turn, vm_id, seen)
            await trio.sleep_until(began + _CHANGES_PERIOD)

    async def _record_changes(
        self, changes: Mapping[UUID, Mapping[UUID, MachineReport]]
    ) -> list[tuple[UUID, MachineReport]]:
        """Record these nodes' reports. Returns the reports that must go through the machine's actor, because its record
        is locked or an earlier report is still waiting there. If a node's reports could not be recorded, another
        inventory of the node is requested."""
        try:
            said = [(node_id, vm_id, seen) for node_id, its in changes.items() for vm_id, seen in its.items()]
            placed = await note_domain_changes(self._database, [(node, vm, seen.state) for node, vm, seen in said])
            # A report about a machine without a record (it was deleted, or never ours) is dropped and not reported as
            # unauthorised.
            own = {vm_id: seen for node_id, vm_id, seen in said if placed.get(vm_id, (None, None))[0] == node_id}
            async with self._recording:
                at_once = {vm_id: seen for vm_id, seen in own.items() if vm_id not in self._being_told}
                to_tell = (own.keys() - at_once.keys()) | await self._record(at_once, None)
            for node_id, vm_id, seen in said:
                # During a move `placed` has both nodes, and either may report the machine.
                if vm_id in placed and node_id not in placed[vm_id]:
                    what = f"reported machine {vm_id} as {seen.state.value}, which is not placed on it"
                    await self._system.ref(Node, str(node_id)).ask(Node.unauthorised_report, what)
        except DomainError as error:
            log.warning("node.changes_not_recorded", nodes=len(changes), error=str(error))
        except Exception:
            # The data of one node may be the cause. Each node's changes are then recorded separately, so that those of
            # the others are not lost.
            log.exception("node.changes_failed", nodes=[str(node_id) for node_id in changes])
            if len(changes) > 1:
                alone = [await self._record_changes({node_id: its}) for node_id, its in changes.items()]
                return [each for held in alone for each in held]
        else:
            return [(vm_id, own[vm_id]) for vm_id in to_tell]
        for node_id in changes:
            self._recheck(node_id)
        return []

    async def _tell_in_turn(self, vm_id: UUID, seen: MachineReport) -> None:
        try:
            await self._tell_machine(vm_id, seen, None)
        finally:
            self._being_told[vm_id] -= 1
            if not self._being_told[vm_id]:
                del self._being_told[vm_id]

    async def _tell_machine(self, vm_id: UUID, seen: MachineReport, asked_at: datetime | None) -> None:
        """Deliver a report to the machine's actor. An actor that refuses, or is slow, delays no other machine. A report
        that is not delivered in time may still be recorded; another inventory of the node is requested in any case."""
        node_id = seen.node_id
        async with self._delivering:
            with trio.move_on_after(self._deadline) as late:
                try:
                    await self._deliver(node_id, vm_id, seen, asked_at)
                except DomainError as error:
                    log.warning("node.machine_not_told", node_id=str(node_id), vm_id=str(vm_id), error=str(error))
                    self._recheck(node_id)
            if late.cancelled_caught:
                self._recheck(node_id)
