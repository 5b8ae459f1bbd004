"""The watch that makes hosts apply the recorded networks of machines.

Level-triggered: each round reads from the records what is to be done. A machine is outstanding while its host has
applied an older generation than the desired one, or while addresses of the machine wait to be released. A commit calls
the watch (`networking.changes.CHANNEL`), and so does a node that connects; the next round makes up for a call that is
lost.

Invariants:
- there is only one question to a node about a machine at a time, and while an open task applies a machine's network
  itself (create, start, delete), the network is left to that task;
- addresses of an existing machine are released only after the host has applied a generation without them. An older
  order that is still on its way then changes nothing on the host, so it cannot bring them back;
- an address is freed only by its node's confirmation, and only if it was already being released when the node was
  asked;
- a machine or a node that fails delays no other: each node has its own limit of concurrent work, and each machine that
  fails its own pause, which doubles. After a new change of the machine, or a new connection of its node, the next
  attempt is made at once;
- only nodes that are managed and online are asked.

Why not a task for each change: ten changes of one machine would be ten orders, although the host needs only the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from uuid import UUID, uuid4

import structlog
import trio

from svc_actors.alerts import CustomerNotice, raise_alert
from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.machines.records import announce_machine
from svc_actors.controller.machines.spec import network_spec
from svc_actors.controller.networking.addresses import ReleasingAddresses, free_removed, releasing_of
from svc_actors.controller.networking.changes import (
    CHANNEL,
    MOST_BELIEVED,
    network_alert,
    network_applied,
    network_failed,
)
from svc_actors.runtime import DomainError
from svc_actors.store import Database, LoopAlert, Record, Transaction, keep_running
from svc_nodeagent.protocol import (
    FailureCode,
    NetworkResult,
    NodeOperation,
    OperationId,
    OperationResult,
    ReleaseResult,
    VmNetApply,
    VmNetRelease,
)

log = structlog.get_logger(__name__)

_BEHIND: Final = """vms.net_applied < vms.net_wanted AND vms.deleted_at IS NULL AND vms.built_at IS NOT NULL
    AND NOT vms.unconfirmed AND vms.moved_from IS NULL
    AND vms.status NOT IN ('deleting', 'failed')
    AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                    AND tasks.status IN ('queued', 'running') AND op IN ('vm.create', 'vm.start', 'vm.delete'))"""
_RELEASABLE: Final = """(vms.deleted_at IS NOT NULL OR vms.built_at IS NULL AND vms.status = 'failed'
    OR vms.built_at IS NOT NULL AND vms.net_applied >= vms.net_wanted AND vms.status <> 'deleting'
    AND NOT vms.unconfirmed AND vms.moved_from IS NULL)"""
_RELEASING: Final = "SELECT DISTINCT vm_id FROM allocations WHERE state = 'releasing'"

_NODES: Final = f"""
SELECT node_id FROM (
    SELECT node_id FROM vms WHERE {_BEHIND}
    UNION SELECT node_id FROM ({_RELEASING}) held JOIN vms ON vms.id = held.vm_id WHERE {_RELEASABLE}
) outstanding JOIN nodes ON nodes.id = outstanding.node_id
WHERE nodes.mode = 'managed' AND nodes.deleted_at IS NULL"""
_OF_A_NODE: Final = f"""
SELECT id, net_wanted FROM vms WHERE node_id = $1 AND id > $2 AND {_BEHIND}
UNION SELECT id, net_wanted FROM ({_RELEASING}) held JOIN vms ON vms.id = held.vm_id
      WHERE node_id = $1 AND id > $2 AND {_RELEASABLE}
ORDER BY id LIMIT $3"""
_OF_A_MACHINE: Final = f"""
SELECT {_BEHIND} AS behind, {_RELEASABLE} AS releasable FROM vms WHERE id = $1 AND node_id = $2"""

_NOBODY: Final = UUID(int=0)
_PASSING: Final = frozenset({FailureCode.CANCELLED, FailureCode.INTERRUPTED})
"""Failures that say nothing about the host: the agent was restarted, or the operation was cancelled."""


class NetworkGateway(Protocol):
    """The part of the gateway that the watch uses."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def perform(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, *, timeout: float
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...

    async def cancel(self, node_id: UUID, operation_id: OperationId) -> None: ...


@dataclass(frozen=True)
class NetworkRhythm:
    """Times in seconds, and limits of concurrent work on a node."""

    round: float = 15.0
    """Between rounds if nobody calls the watch."""
    gather: float = 0.02
    """How long a call waits for others, so that many changes at once cause one query."""
    first_pause: float = 1.0
    longest_pause: float = 60.0
    between_retries: float = 1.0
    operation: float = 60.0
    at_once: int = 16
    page: int = 100


@dataclass(frozen=True)
class _Rest:
    """A machine whose last attempt failed. It is left alone until `until`, unless its desired generation is no longer
    `generation`."""

    generation: int
    until: float
    pause: float


@dataclass
class _Node:
    """The work under way on one node."""

    slots: trio.Semaphore
    called: trio.Event = field(default_factory=trio.Event)
    under_way: set[UUID] = field(default_factory=set)
    again: set[UUID] = field(default_factory=set)
    """Machines that were read as outstanding while work for them was under way. They are read again when that work
    ends."""
    resting: dict[UUID, _Rest] = field(default_factory=dict)


class _NotDone(Exception):  # noqa: N818 - named for what it says
    """This attempt failed on the host. If the failure says something about the host, it is already recorded on the
    machine."""


class NetworkWatch:
    """One per process; `run` runs in the composer's nursery. `connected` is for the gateway's hook of that name."""

    def __init__(
        self,
        database: Database,
        gateway: NetworkGateway,
        *,
        intervals: NetworkRhythm | None = None,
        alert: LoopAlert | None = None,
    ) -> None:
        self._alert = alert
        self._database = database
        self._gateway = gateway
        self._intervals = intervals or NetworkRhythm()
        self._nodes: dict[UUID, _Node] = {}
        self._called = trio.Event()
        self.applied = 0
        """Networks applied since the start, for the metrics."""

    def connected(self, node_id: UUID) -> None:
        """The node has connected (again): work that failed on it before is tried again at once."""
        if node_id in self._nodes:
            self._nodes[node_id].resting.clear()
        self._called.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._hear)
            task_status.started()
            await keep_running("network watch", partial(self._look_for_ever, nursery), self._alert)

    async def _hear(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._database.announcements.listener(CHANNEL, lambda _: self._called.set()):
            async with self._database.listen(CHANNEL) as heard:
                task_status.started()
                async for _ in heard:
                    self._called.set()

    async def _look_for_ever(self, nursery: trio.Nursery) -> None:
        while True:
            # The new event is set up before `_look`, so that a call during `_look` starts the next one.
            self._called = trio.Event()
            await self._look(nursery)
            with trio.move_on_after(self._intervals.round):
                await self._called.wait()
            await trio.sleep(self._intervals.gather)

    async def _look(self, nursery: trio.Nursery) -> None:
        """Wake every node that has outstanding machines."""
        for row in await self._database.fetch(_NODES):
            node_id = row["node_id"]
            if not self._gateway.is_online(node_id):
                continue
            node = self._nodes.get(node_id)
            if node is None:
                node = self._nodes[node_id] = _Node(trio.Semaphore(self._intervals.at_once))
                nursery.start_soon(self._serve, node_id, node)
            node.called.set()

    async def _serve(self, node_id: UUID, node: _Node) -> None:
        """Work on the outstanding machines of one node, until there are none."""
        async with trio.open_nursery() as nursery:
            while True:
                node.called = trio.Event()  # Before the pass, for the same reason as in `_look_for_ever`.
                started = trio.current_time()
                try:
                    await self._work_off(node_id, node, nursery)
                except DomainError as error:
                    log.warning("network_watch.node_interrupted", node_id=str(node_id), error=str(error))
                    await trio.sleep(self._intervals.first_pause)
                    node.called.set()
                except Exception:
                    # A defect in handling this node must not end the watch; the next round tries the node again.
                    log.exception("network_watch.node_failed", node_id=str(node_id))
                online = self._gateway.is_online(node_id)
                if not node.under_way and not (online and (node.resting or node.called.is_set())):
                    # There is no checkpoint between the decision and this deletion. So `_look` finds either this task
                    # still serving the node, or no entry, in which case it starts a new task: there are never two tasks
                    # and never none.
                    del self._nodes[node_id]
                    return
                # Wait until the first machine may be tried again, but at least `between_retries` after the start of the
                # last pass: a machine that stays outstanding must not make this loop spin.
                rested = min((rest.until for rest in node.resting.values()), default=0.0)
                with trio.move_on_at(max(rested, started + self._intervals.between_retries)):
                    await node.called.wait()

    async def _work_off(self, node_id: UUID, node: _Node, nursery: trio.Nursery) -> None:
        """Start work for each of the node's outstanding machines once, in the order of their ids, a page at a time."""
        now = trio.current_time()
        rested = {vm_id: rest for vm_id, rest in node.resting.items() if rest.until <= now}
        for vm_id in rested:
            # `_begin` finds the entry in `rested` if the machine is still outstanding. Otherwise the entry is no longer
            # needed.
            del node.resting[vm_id]
        after = _NOBODY
        while self._gateway.is_online(node_id):
            page = await self._database.fetch(_OF_A_NODE, node_id, after, self._intervals.page)
            for row in page:
                await self._begin(node_id, node, row, rested, nursery)
            if len(page) < self._intervals.page:
                return
            after = page[-1]["id"]

    async def _begin(
        self, node_id: UUID, node: _Node, row: Record, rested: dict[UUID, _Rest], nursery: trio.Nursery
    ) -> None:
        vm_id: UUID = row["id"]
        # The machine's network may have changed after the work under way has read it, so the machine is looked at again
        # when that work ends.
        if vm_id in node.under_way:
            node.again.add(vm_id)
            return
        rest = node.resting.get(vm_id) or rested.get(vm_id)
        # The desired generation has changed since the failure. This is another order, which may well succeed: the
        # machine does not rest, and its pause starts again at the shortest.
        if rest is not None and rest.generation != row["net_wanted"]:
            rest = None
        if rest is not None and vm_id in node.resting:
            return
        node.resting.pop(vm_id, None)
        node.under_way.add(vm_id)
        await node.slots.acquire()
        pause = self._intervals.first_pause if rest is None else min(2 * rest.pause, self._intervals.longest_pause)
        nursery.start_soon(self._bring, node_id, node, vm_id, row["net_wanted"], pause)

    async def _bring(self, node_id: UUID, node: _Node, vm_id: UUID, generation: int, pause: float) -> None:
        """Do the outstanding work for one machine; if it fails, let the machine rest for `pause` seconds."""
        done = False
        try:
            await self._bring_up_to_date(node_id, vm_id)
            done = True
        except (_NotDone, DomainError) as failure:
            log.warning("network_watch.not_done", node_id=str(node_id), vm_id=str(vm_id), error=str(failure))
        except Exception:
            # A defect in handling this machine must not end the work on the others, or the controller.
            log.exception("network_watch.machine_failed", vm_id=str(vm_id))
        finally:
            node.under_way.discard(vm_id)
            node.slots.release()
            if not done:
                node.resting[vm_id] = _Rest(generation, trio.current_time() + pause, pause)
            # `_serve` is also called when nothing is under way any longer, because it then decides whether it has
            # finished with the node.
            if vm_id in node.again or not node.under_way:
                node.again.discard(vm_id)
                node.called.set()

    async def _bring_up_to_date(self, node_id: UUID, vm_id: UUID) -> None:
        outstanding = await self._database.fetchrow(_OF_A_MACHINE, vm_id, node_id)
        if outstanding is not None and outstanding["behind"]:
            await self._apply(node_id, vm_id)
        releasing = await releasing_of(self._database, vm_id)
        if releasing is None:
            return
        # Read after `releasing_of`, not before. Each release comes with a new generation. So if the host is up to date
        # now, it has applied a network without any of the addresses that `releasing_of` returned.
        outstanding = await self._database.fetchrow(_OF_A_MACHINE, vm_id, node_id)
        if outstanding is not None and outstanding["releasable"]:
            await self._release(node_id, vm_id, releasing)

    async def _apply(self, node_id: UUID, vm_id: UUID) -> None:
        spec = await network_spec(self._database, vm_id)
        operation_id = OperationId(f"network:{vm_id}:{uuid4()}")
        try:
            result = await self._perform(node_id, operation_id, VmNetApply(vm_id=vm_id, network=spec))
        except OperationFailed as failure:
            if failure.code not in _PASSING:
                await self._record_failure(vm_id, spec.generation, failure.message)
            await self._gateway.acknowledge(node_id, operation_id)
            raise _NotDone(failure.message) from failure
        except NodeUnavailable as failure:
            if self._gateway.is_online(node_id):
                await self._record_failure(vm_id, spec.generation, "its agent is connected, but gave no answer.")
            raise _NotDone(failure.message) from failure
        # The host may be ahead of `spec`, since a task may have sent a newer generation meanwhile, but never behind it.
        # A number beyond `MOST_BELIEVED` is false and not believed, because no later generation could exceed it.
        applied = result.generation if isinstance(result, NetworkResult) else None
        if applied is None or not spec.generation <= applied <= MOST_BELIEVED:
            words = f"the host says that it has generation {applied}, and was asked for {spec.generation}."
            await self._record_failure(vm_id, spec.generation, words)
            await self._gateway.acknowledge(node_id, operation_id)
            raise _NotDone(words)
        generation = applied

        async def write(tx: Transaction) -> None:
            if await network_applied(tx, vm_id, generation):
                await announce_machine(tx, vm_id)

        await self._database.transact(write)
        self.applied += 1
        await self._gateway.acknowledge(node_id, operation_id)

    async def _release(self, node_id: UUID, vm_id: UUID, releasing: ReleasingAddresses) -> None:
        operation_id = OperationId(f"release:{vm_id}:{uuid4()}")
        operation = VmNetRelease(vm_id=vm_id, addresses=releasing.addresses)
        try:
            result = await self._perform(node_id, operation_id, operation)
        except OperationFailed as failure:
            await self._gateway.acknowledge(node_id, operation_id)
            raise _NotDone(failure.message) from failure
        removed = result.removed if isinstance(result, ReleaseResult) else ()

        async def write(tx: Transaction) -> None:
            if await free_removed(tx, vm_id, removed, through=releasing.through):
                await announce_machine(tx, vm_id)

        await self._database.transact(write)
        await self._gateway.acknowledge(node_id, operation_id)
        # The host has answered without an error but has not released all addresses: it still routes or filters the
        # rest, so these are asked for again.
        if left := set(releasing.addresses) - set(removed):
            raise _NotDone(f"the host has not released {', '.join(sorted(left))}")

    async def _perform(self, node_id: UUID, operation_id: OperationId, operation: NodeOperation) -> OperationResult:
        try:
            return await self._gateway.perform(node_id, operation_id, operation, timeout=self._intervals.operation)
        except NodeUnavailable:
            # The next attempt has a new id and sends the network of its own moment. This operation must not be done
            # after that one.
            await self._gateway.cancel(node_id, operation_id)
            raise

    async def _record_failure(self, vm_id: UUID, generation: int, message: str) -> None:
        """Record on the machine that applying this generation failed on its host, and raise an alert."""

        async def work(tx: Transaction) -> None:
            failure = await network_failed(tx, vm_id, generation, message)
            if failure is None:
                return  # The failure is outdated: the machine is gone, or its host has applied this generation by now.
            await raise_alert(
                tx,
                network_alert(vm_id),
                f"The network of machine {failure.machine} on node {failure.node} differs from its record; it is "
                f"retried: {message}",
                resource_kind="vm",
                resource_id=vm_id,
                notice=CustomerNotice(
                    failure.project_id,
                    f"The host could not apply the network of machine {failure.machine} yet; it is retried.",
                ),
            )
            if failure.news:
                await announce_machine(tx, vm_id)

        await self._database.transact(work)
