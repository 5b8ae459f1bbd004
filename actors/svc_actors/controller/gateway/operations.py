"""The operations of one node: kept until there is an outcome, sent again on every connection, limited in number.

Nothing here waits for the network: frames are handed to the current connection, if there is one. Invariants:

- an operation is known by its id; asking for the same id joins it;
- an outcome is kept only while a caller waits for it. The agent's journal keeps each outcome until it is acknowledged,
  and a caller that asks for the id again gets the outcome from the journal. If no caller has asked for an outcome
  within `KEPT_SECONDS`, it is acknowledged, so that the agent forgets it;
- a cancellation is remembered for the same time: an agent that still has the operation gets the cancellation on every
  connection, and an operation that the agent never had is no longer sent;
- an operation that the agent is too old to know is refused here, and nothing of it is sent;
- the number of operations of a lane that are under way on a node is limited, so a long queue of image transfers, or
  many guests that ignore a shutdown, never keep a machine from being stopped;
- among operations that wait in a lane, the project whose last turn is longest ago goes first: a project with many
  machines, or with guests that do not answer, delays the others by one operation for each that is under way.

Rejected: keeping outcomes here for a while. A node that answered under unknown ids filled the controller's memory:
5,000 outcomes of 4 MiB, for ten minutes.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import trio

from svc_actors.tracing import ORIGIN, Kind, Origin
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import (
    PROTOCOL_VERSION,
    Acknowledge,
    BackupResult,
    Cancel,
    DownFrame,
    Failed,
    FailureCode,
    Hello,
    HostCall,
    Lane,
    NodeOperation,
    OperationId,
    OperationResult,
    Outcome,
    Progress,
    Request,
    Result,
    VmBackup,
    needed,
)

KEPT_SECONDS: Final = 600.0
_MOST_REMEMBERED: Final = 5_000
"""The most ids that are remembered of each kind (told, cancelled, acknowledged) for each node: at most a megabyte, and
more ids than the node's lanes ever hold."""
_PROGRESS_BUFFER: Final = 64
_LAST_FOR_SECONDS: Final = 900.0
"""How long an operation that is `last_in_lane` lets others go first; without this limit it would wait for ever behind a
steady stream of others. Once it has run, others go first again for as long as it took. So such operations never take
more than half of the time of a lane in which others wait."""

_Key = TypeVar("_Key", bound=Hashable)
Send = Callable[[DownFrame], None]
OnProgress = Callable[[Progress], Awaitable[None]]


class OperationFailed(Exception):  # noqa: N818 - named for what it says
    """The host reports that it tried the operation, which failed."""

    def __init__(self, code: FailureCode, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class NodeUnavailable(ServiceError):  # noqa: N818 - named for what it says
    """The node did not answer in time. Whether it executed the operation is unknown."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, hint=hint)


class NodeLost(NodeUnavailable):
    """The node was declared lost: no outcome will come from it."""

    def __init__(self) -> None:
        super().__init__("The node was declared lost; nothing was sent to it.")


# The limit of a lane is low where an operation makes the host work (transfers, backups, creations) or occupies a thread
# of the host (a guest's agent, which may be silent for half a minute). It is high where the host only waits (patience).
# `Lane` says which operations are in each lane.
LANE_LIMITS: Final = {
    Lane.TRANSFERS: 4,
    Lane.BACKUPS: 1,
    Lane.CREATIONS: 16,
    Lane.PATIENCE: 256,
    Lane.FORCE: 16,
    Lane.GUEST_AGENTS: 4,
    Lane.NETWORKS: 16,
    Lane.ORDERS: 16,
    Lane.QUERIES: 16,
}


@dataclass
class _Pending:
    id: OperationId
    operation: NodeOperation
    lane: Lane
    deadline: float
    origin: Origin | None
    """The origin of the first caller; the agent uses it for its log and its calls to the host."""
    asked_at: float = field(default_factory=trio.current_time)
    waiters: int = 0
    sent: bool = False
    """Whether it was sent to the agent on the current connection."""
    sent_to: str | None = None
    """The boot id of the agent process to which it was last sent."""
    sent_at: float | None = None
    cancelled: bool = False
    outcome: Outcome | None = None
    settled: trio.Event = field(default_factory=trio.Event)
    listeners: list[trio.MemorySendChannel[Progress]] = field(default_factory=list)

    @property
    def owner_id(self) -> UUID | None:
        return self.origin.owner_id if self.origin is not None else None


class NodeOperations:
    def __init__(self) -> None:
        self._pending: dict[OperationId, _Pending] = {}
        self._told: dict[OperationId, float] = {}
        """Operations whose outcome the node has reported and may have to report again, with the time until which it
        keeps the outcome."""
        self._cancelled: dict[OperationId, float] = {}
        self._acknowledged: dict[OperationId, float] = {}
        self._served: dict[tuple[Lane, UUID | None], float] = {}
        """When an operation of each project was last sent, for each lane."""
        self._others_until = 0.0
        """Until this time other operations go before those that are `last_in_lane`, even before those that have waited
        longer than `_LAST_FOR_SECONDS`."""
        self._send: Send | None = None
        self._known: set[OperationId] = set()
        """Operations that the connected agent has: those that its hello named, and those that were sent to it since."""
        self._boot_id = ""
        self._version = 0
        """The version of the protocol that the connected agent speaks."""

    def __contains__(self, operation_id: OperationId) -> bool:
        return operation_id in self._pending

    @property
    def idle(self) -> bool:
        return not (self._pending or self._told or self._cancelled or self._acknowledged)

    def attach(self, send: Send, hello: Hello) -> None:
        """A connection is open: send the agent all cancellations and acknowledgements that wait, and all operations."""
        self._send, self._known, self._boot_id = send, set(hello.unacknowledged), hello.boot_id
        self._version = hello.protocol
        # First the agent gets the cancellations and acknowledgements of operations without a caller that came while the
        # node was away. Cancelled operations that still have a caller are in `pending` and follow below.
        for operation_id in self._known & self._cancelled.keys() - self._pending.keys():
            send(Cancel(id=operation_id))
        if forgotten := tuple(self._known & self._acknowledged.keys()):
            send(Acknowledge(ids=forgotten))
        for pending in self._pending.values():
            # If the connected agent is still the same process, it continues with the operations that it has. An agent
            # that was restarted has lost them, so they are sent again.
            pending.sent = pending.sent_to == hello.boot_id and pending.id in self._known
        for pending in list(self._pending.values()):
            self._refuse_unknown(pending)
            if pending.cancelled:
                self._send_cancel(pending)
        self._pump()

    def detach(self, send: Send) -> None:
        if self._send is send:
            self._send, self._known = None, set()

    async def perform(
        self, operation_id: OperationId, operation: NodeOperation, *, timeout: float, on_progress: OnProgress | None
    ) -> OperationResult:
        deadline = trio.current_time() + timeout
        # A caller wants the outcome again, so a late answer must reach this caller and must not simply be acknowledged.
        self._acknowledged.pop(operation_id, None)
        pending = self._pending.get(operation_id)
        if pending is None:
            pending = self._pending[operation_id] = _Pending(
                operation_id, operation, operation.facts.lane, deadline, ORIGIN.get()
            )
            # The operation was cancelled before it was asked again. If its outcome is not in the agent's journal, it
            # must not be sent now. If it is, the operation may be sent: the agent only repeats that outcome.
            if operation_id in self._cancelled and operation_id not in self._told:
                pending.cancelled = True
                self._send_cancel(pending)
            else:
                self._refuse_unknown(pending)
                self._pump()
        pending.deadline = max(pending.deadline, deadline)
        pending.waiters += 1
        try:
            with trio.move_on_after(timeout):
                await _follow(pending, on_progress)
        finally:
            pending.waiters -= 1
        if pending.outcome is None:
            # If another caller waits for the same operation, it is kept: that caller's timeout may be later.
            if not pending.waiters:
                self._drop(pending)
            raise NodeUnavailable(
                f"The node did not answer {operation.op} within {timeout:.0f} seconds.",
                hint="Whether the operation was done is unknown; the node's next inventory shows the state.",
            )
        return _result(pending.outcome)

    def progressed(self, progress: Progress) -> None:
        pending = self._pending.get(progress.id)
        for listener in pending.listeners if pending is not None else ():
            try:
                listener.send_nowait(progress)
            except trio.WouldBlock:
                continue  # The listener is slow; the next progress message is newer and replaces this one.

    def ended(self, result: Result) -> str | None:
        """Accept an outcome. Returns None, or why the outcome cannot be true: it is of another kind than the
        operation's, or about something else than the operation."""
        pending = self._pending.get(result.id)
        if pending is None:
            if result.id in self._acknowledged:
                self.acknowledge(result.id)  # The earlier acknowledgement was lost when a connection ended.
            else:
                # No caller waits for it now: only the id is remembered, and the agent repeats the outcome when the
                # operation is asked again.
                self._keep(self._told, result.id)
            return None
        self._keep(self._told, result.id)
        lie = _no_answer_to(pending.operation, result.outcome)
        if lie is None:
            _trace_calls(pending.origin, result.calls)
            self._settle(pending, result.outcome)
        else:
            self._settle(pending, Failed(code=FailureCode.HOST, message=f"The node {lie}; its answer was refused."))
        return lie

    def cancel(self, operation_id: OperationId) -> None:
        self._keep(self._cancelled, operation_id)
        pending = self._pending.get(operation_id)
        if pending is not None:
            pending.cancelled = True
            self._send_cancel(pending)
        elif self._send is not None and operation_id in self._known:
            self._send(Cancel(id=operation_id))

    def acknowledge(self, operation_id: OperationId) -> None:
        self._told.pop(operation_id, None)
        self._known.discard(operation_id)
        self._keep(self._acknowledged, operation_id)
        if self._send is not None:
            self._send(Acknowledge(ids=(operation_id,)))

    def sweep(self) -> None:
        """Forget the ids whose outcomes no caller has asked for in time."""
        now = trio.current_time()
        for operation_id in [id_ for id_, until in self._told.items() if until <= now and id_ not in self._pending]:
            self.acknowledge(operation_id)
        for memory in (self._cancelled, self._acknowledged):
            for operation_id in [id_ for id_, until in memory.items() if until <= now]:
                del memory[operation_id]
        for pending in [each for each in self._pending.values() if not each.waiters and each.deadline <= now]:
            self._drop(pending)

    def fail_all(self, message: str) -> None:
        """The node will not come back: end every wait for it."""
        for pending in list(self._pending.values()):
            self._settle(pending, Failed(code=FailureCode.CANCELLED, message=message))

    def _send_cancel(self, pending: _Pending) -> None:
        if self._send is None:
            return
        # Never sent, and the agent does not have it, so the node cannot have done any of it.
        if pending.sent_to is None and pending.id not in self._known:
            self._settle(
                pending, Failed(code=FailureCode.CANCELLED, message="Cancelled before it was sent to the node.")
            )
        else:
            pending.sent = True
            self._send(Cancel(id=pending.id))

    def _refuse_unknown(self, pending: _Pending) -> None:
        """Fail an operation that the connected agent is too old to know, before anything of it is sent."""
        if self._send is None or self._version >= PROTOCOL_VERSION or pending.outcome is not None:
            return
        version = needed(pending.operation)
        if version > self._version:
            self._settle(pending, _too_new(pending.operation, version, self._version))

    def _pump(self) -> None:
        """Send waiting operations as far as the lanes have room."""
        if self._send is None:
            return
        room, waiting = dict(LANE_LIMITS), dict[Lane, list[_Pending]]()
        for pending in self._pending.values():
            if pending.sent:
                room[pending.lane] -= 1
            else:
                waiting.setdefault(pending.lane, []).append(pending)
        now = trio.current_time()
        for lane, those in waiting.items():
            while those and room[lane] > 0:
                # If the lane has room for all waiting operations, they go in order. Otherwise `_turn` chooses; among
                # equals `min` takes the oldest.
                chosen = those[0] if len(those) <= room[lane] else min(those, key=partial(self._turn, now))
                those.remove(chosen)
                room[lane] -= 1
                self._request(chosen, now)

    def _turn(self, now: float, pending: _Pending) -> tuple[bool, float]:
        """The sort key: the operation with the least is sent first. An operation that is `last_in_lane` goes after all
        others, until it has waited for long."""
        waits = now < max(pending.asked_at + _LAST_FOR_SECONDS, self._others_until)
        served = self._served.get((pending.lane, pending.owner_id), -math.inf)
        return pending.operation.facts.last_in_lane and waits, served

    def _request(self, pending: _Pending, now: float) -> None:
        assert self._send is not None
        pending.sent, pending.sent_to, pending.sent_at = True, self._boot_id, now
        self._known.add(pending.id)
        _remember(self._served, (pending.lane, pending.owner_id), now)
        seconds = pending.deadline - now
        self._send(
            Request(
                id=pending.id,
                operation=pending.operation,
                # An operation without a deadline (a deletion, a reinstallation) gets a timeout of a day.
                timeout_seconds=max(1.0, seconds if math.isfinite(seconds) else 86_400.0),
                request_id=pending.origin.request_id if pending.origin is not None else None,
                traceparent=_traceparent(pending.origin),
            )
        )

    def _settle(self, pending: _Pending, outcome: Outcome) -> None:
        pending.outcome = outcome
        if pending.sent_at is not None and pending.operation.facts.last_in_lane:
            now = trio.current_time()
            self._others_until = now + (now - pending.sent_at)
        self._drop(pending)
        for listener in pending.listeners:
            listener.close()
        pending.settled.set()

    def _drop(self, pending: _Pending) -> None:
        if self._pending.get(pending.id) is pending:
            del self._pending[pending.id]
            self._pump()

    def _keep(self, memory: dict[OperationId, float], operation_id: OperationId) -> None:
        _remember(memory, operation_id, trio.current_time() + KEPT_SECONDS)


def _remember(memory: dict[_Key, float], what: _Key, at: float) -> None:
    memory.pop(what, None)  # Removed first, so that an id that is remembered again moves to the end.
    while len(memory) >= _MOST_REMEMBERED:
        del memory[next(iter(memory))]
    memory[what] = at


async def _follow(pending: _Pending, on_progress: OnProgress | None) -> None:
    """Wait for the outcome. Progress is passed on in the waiting task, so a slow reader delays no other."""
    if on_progress is not None and pending.outcome is None:
        sending, receiving = trio.open_memory_channel[Progress](_PROGRESS_BUFFER)
        pending.listeners.append(sending)
        try:
            async for progress in receiving:
                await on_progress(progress)
        finally:
            pending.listeners.remove(sending)
    await pending.settled.wait()


def _traceparent(origin: Origin | None) -> str | None:
    """The header that makes the agent report its calls of the host; None if the trace is not sampled."""
    span = origin.span if origin is not None else None
    return span.traceparent if span is not None and span.sampled else None


def _trace_calls(origin: Origin | None, calls: Sequence[HostCall]) -> None:
    """Create spans for the agent's calls of the host, which the agent reports with its outcome because it cannot reach
    a collector itself. Times are by the node's clock."""
    span = origin.span if origin is not None else None
    if span is None:
        return
    for call in calls:
        made = span.child(call.name, Kind.CLIENT, {}, started_at=call.at)
        if call.error is not None:
            made.fail(call.error)
        made.end(at=call.at + timedelta(seconds=call.seconds))


def _result(outcome: Outcome) -> OperationResult:
    if isinstance(outcome, Failed):
        raise OperationFailed(outcome.code, outcome.message, outcome.hint)
    return outcome.result


def _too_new(operation: NodeOperation, needed_version: int, version: int) -> Failed:
    return Failed(
        code=FailureCode.UNSUPPORTED,
        message=f"The node's agent cannot do this: {operation.op} as asked needs protocol {needed_version}, the agent"
        f" speaks {version}. Nothing was sent to the node.",
        hint="Upgrade the node's agent: docs/upgrades.md says how.",
    )


def _no_answer_to(operation: NodeOperation, outcome: Outcome) -> str | None:
    if isinstance(outcome, Failed):
        return None
    result = outcome.result
    if result.kind != operation.facts.answer:
        return f"answered {operation.op} with {result.kind}"
    asked, answered = _subjects(operation), _subjects(result)
    for what in asked.keys() & answered.keys():
        if asked[what] != answered[what]:
            return f"was asked about {what} {asked[what]} and answered for {answered[what]}"
    if isinstance(operation, VmBackup) and isinstance(result, BackupResult):
        unasked = set(result.forgotten) - set(operation.forget)
        if unasked:
            return f"says that it has removed {len(unasked)} copies that it was not asked to remove"
    return None


def _subjects(said: NodeOperation | OperationResult) -> dict[str, UUID]:
    """The ids of the machine, copy, snapshot and image that an operation or a result is about."""
    machine = getattr(said, "machine", said)
    found = {
        "machine": getattr(machine, "vm_id", None),
        "copy": getattr(said, "copy_id", None),
        "snapshot": getattr(said, "snapshot_id", None),
        "image": getattr(getattr(said, "image", None), "image_id", None),
    }
    return {what: which for what, which in found.items() if which is not None}
