"""Runs the controller's operations, each of them once. An outcome is journalled before it is sent.

Invariants:

- a repeated request joins the operation while it runs, and is answered from the journal once it has ended; it is never
  executed again;
- operations run in the dispatcher's nursery and belong to no connection: they continue while the agent is disconnected,
  and every outcome that was not acknowledged is sent again on the next connection;
- an operation that an earlier process started is run again when the controller asks for it (operations are idempotent,
  unless their facts say otherwise). If the controller does not ask for it within a while after the agent has connected,
  the operation's outcome is `interrupted`.

An operation that changes nothing is not written to the journal (`Facts.recorded`): after a restart it is simply run
again.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog
import trio
from structlog.contextvars import bind_contextvars

from svc_nodeagent.calls import note_calls
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import Host, HostError, Report
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import (
    MAX_FRAME_BYTES,
    CertificateRenew,
    ConsoleOpen,
    DomainChanged,
    Done,
    Failed,
    FailureCode,
    HostCall,
    NodeOperation,
    NodePreflight,
    NodeUpgrade,
    OperationId,
    OperationResult,
    Outcome,
    Progress,
    Request,
    Result,
    Succeeded,
    UpFrame,
)
from svc_nodeagent.upgrade import Replaced

UNCLAIMED_AFTER = 60.0
_MOST_PROGRESS = 1_000
_MOST_ANSWER_BYTES = MAX_FRAME_BYTES - 64 * 1024
"""The most bytes of a result; the rest of its frame is for its `calls`. A result larger than a frame would end the
connection, and be sent again on the next connection."""
_JOURNAL_RETRY = 5.0
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
"""The start of a `traceparent`: its version and its trace id."""
log = structlog.get_logger(__name__)


class Core(Protocol):
    """The operations that the agent itself carries out instead of the hypervisor."""

    async def open_console(self, operation: ConsoleOpen) -> None: ...

    def renew_certificate(self) -> None: ...

    def complete_preflight(self, operation: NodePreflight, result: OperationResult) -> OperationResult: ...

    async def upgrade(self, operation: NodeUpgrade, report: Report) -> None: ...


class Outbox:
    """The frames that one connection still has to send: every result and every change of state, but only the newest
    progress of each operation."""

    def __init__(self) -> None:
        self._frames: deque[UpFrame] = deque()
        self._progress: deque[Progress] = deque(maxlen=_MOST_PROGRESS)
        self._ready = trio.Event()

    def put(self, frame: UpFrame) -> None:
        if isinstance(frame, Progress):
            self._progress.append(frame)
        else:
            self._frames.append(frame)
        self._ready.set()

    async def take(self) -> list[UpFrame]:
        """All frames to send, progress before the results that end it. Waits for at least one frame."""
        await self._ready.wait()
        frames = [*self._progress, *self._frames]
        self._progress.clear()
        self._frames.clear()
        self._ready = trio.Event()
        return frames


@dataclass
class _Run:
    """One operation that runs. `resumed`: it was started by an earlier process, which died."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    cancelled: bool = False
    resumed: bool = False


class Dispatcher:
    def __init__(self, host: Host, journal: Journal, core: Core) -> None:
        self._host = host
        self._journal = journal
        self._core = core
        self._runs: dict[OperationId, _Run] = {}
        self._outbox: Outbox | None = None
        self._calls: dict[OperationId, list[HostCall]] = {}
        """Calls of traced operations that are not acknowledged yet. They are not in the journal, so a restart loses
        them."""
        self._changes: dict[str, DomainChanged] = {}
        self._nursery: trio.Nursery | None = None
        self._idle = trio.Event()
        self._stopping = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Host the operations until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @property
    def unacknowledged(self) -> tuple[OperationId, ...]:
        return tuple(dict.fromkeys([*self._runs, *self._journal.unacknowledged]))

    def attach(self, outbox: Outbox) -> None:
        """Send to this connection from now on, starting with every outcome that the controller has not acknowledged."""
        self._outbox = outbox
        for operation_id, outcome in self._journal.outcomes.items():
            outbox.put(self._result(operation_id, outcome))
        for change in self._changes.values():
            outbox.put(change)
        self._changes.clear()

    def detach(self, outbox: Outbox) -> None:
        if self._outbox is outbox:
            self._outbox = None

    def request(self, request: Request) -> None:
        if request.id in self._runs or self._stopping:
            return
        outcome = self._journal.outcomes.get(request.id)
        if outcome is not None:
            self._tell(self._result(request.id, outcome))
            return
        self._start(request.id, request)

    def cancel(self, operation_id: OperationId) -> None:
        run = self._runs.get(operation_id)
        if run is not None:
            run.cancelled = True
            run.scope.cancel()
        elif operation_id not in self._journal.outcomes and not self._stopping:
            self._start(operation_id, None)

    def acknowledge(self, operation_ids: Sequence[OperationId]) -> None:
        self._journal.acknowledge(operation_ids)
        for operation_id in operation_ids:
            self._calls.pop(operation_id, None)

    def domain_changed(self, change: DomainChanged) -> None:
        if self._outbox is not None:
            self._outbox.put(change)
        else:
            self._changes[str(change.vm_id)] = change

    async def give_up_unclaimed(self, since_start: Iterable[OperationId]) -> None:
        """Run once the controller is connected. Operations that an earlier process started, and that the controller
        does not ask for, are answered as interrupted."""
        await trio.sleep(UNCLAIMED_AFTER)
        for operation_id in since_start:
            if operation_id in self._journal.started and operation_id not in self._runs:
                self._start(operation_id, None)

    async def stop(self, patience: float) -> None:
        """Accept no new operations, and wait for running ones. Operations that do not end in time stay journalled as
        started, and the controller requests them again."""
        self._stopping = True
        if self._runs:
            with trio.move_on_after(patience):
                await self._idle.wait()

    def _start(self, operation_id: OperationId, request: Request | None) -> None:
        if self._nursery is None:
            raise RuntimeError("the dispatcher is not running")
        run = self._runs[operation_id] = _Run()
        if request is None:
            self._nursery.start_soon(self._refuse_unseen, operation_id)
        else:
            self._nursery.start_soon(self._execute, request, run)

    async def _execute(self, request: Request, run: _Run) -> None:
        durable = request.operation.facts.recorded
        bind_contextvars(**_log_fields(request))
        if request.traceparent is not None:
            self._calls[request.id] = note_calls()
        began = trio.current_time()
        try:
            if request.id in self._journal.started:
                run.resumed = True
                if not request.operation.facts.repeatable:
                    await self._end(request.id, _NOT_AGAIN, durable=True)
                    return
            elif durable:
                try:
                    await self._journal.start(request.id)
                except OSError as error:
                    # The operation was not started and is not in the journal, so the controller may request it again
                    # under another id.
                    outcome: Outcome = Failed(
                        code=FailureCode.HOST,
                        message=f"The operation was not started: {error.strerror}.",
                        hint="Free disk space on the node, then try again.",
                    )
                    await self._end(request.id, outcome, durable=False)
                    return
            fault_point("agent.begun")
            try:
                outcome = await self._perform(request, run)
            except Replaced:
                # The journal has the operation as started. The controller will ask the next process for its outcome,
                # and that process answers.
                return
            fault_point("agent.performed")
            await self._end(request.id, outcome, durable=durable)
            if durable:
                seconds = round(trio.current_time() - began, 3)
                log.info("operation.ended", op=request.operation.op, outcome=_in_a_word(outcome), seconds=seconds)
        finally:
            self._over(request.id)

    async def _perform(self, request: Request, run: _Run) -> Outcome:
        async def report(percent: int, message: str) -> None:
            await trio.lowlevel.checkpoint()
            self._tell(Progress(id=request.id, percent=max(0, min(100, percent)), message=message))

        seconds = request.timeout_seconds if math.isfinite(request.timeout_seconds) else 86_400.0
        try:
            with run.scope, trio.fail_after(max(seconds, 0.0)):
                return _answer(request.operation, await self._route(request.operation, report))
        except Replaced:
            raise
        except HostError as error:
            return Failed(code=error.code, message=error.message, hint=error.hint)
        except trio.TooSlowError:
            return Failed(
                code=FailureCode.TIMED_OUT,
                message=f"The node stopped {request.operation.op} after {seconds:.0f} seconds without a result.",
                hint="The host may hang; run the node's preflight.",
            )
        except Exception as error:
            # An unexpected exception fails only its own operation: the agent and the other operations continue.
            log.exception("operation.crashed", operation_id=request.id, op=request.operation.op)
            return Failed(
                code=FailureCode.HOST,
                message=f"The node agent failed in {request.operation.op}: {type(error).__name__}.",
                hint="The agent's log has the details.",
            )
        return _PARTLY_CANCELLED if run.resumed else _CANCELLED

    async def _route(self, operation: NodeOperation, report: Report) -> OperationResult:
        match operation:
            case ConsoleOpen():
                await self._core.open_console(operation)
                return Done()
            case CertificateRenew():
                self._core.renew_certificate()
                return Done()
            case NodeUpgrade():
                await self._core.upgrade(operation, report)
                return Done()
            case NodePreflight():
                return self._core.complete_preflight(operation, await self._host.perform(operation, report))
            case _:
                return await self._host.perform(operation, report)

    async def _refuse_unseen(self, operation_id: OperationId) -> None:
        """Journal an outcome for an operation whose request is not known to this process: it was cancelled before it
        arrived, or an earlier process started it and the controller did not request it again. The outcome keeps the
        request from being run later."""
        try:
            started = operation_id in self._journal.started
            await self._end(operation_id, _INTERRUPTED if started else _NEVER_STARTED, durable=True)
        finally:
            self._over(operation_id)

    def _over(self, operation_id: OperationId) -> None:
        self._runs.pop(operation_id, None)
        if not self._runs:
            self._idle.set()
            self._idle = trio.Event()

    async def _end(self, operation_id: OperationId, outcome: Outcome, *, durable: bool) -> None:
        """Journal the outcome first, then send it. A full disk only delays: the outcome is kept in memory until it can
        be written."""
        while True:
            try:
                await self._journal.finish(operation_id, outcome, durable=durable)
                break
            except OSError as error:
                log.error("journal.not_written", error=str(error), operation_id=operation_id)
                await trio.sleep(_JOURNAL_RETRY)
        fault_point("agent.journalled")
        self._tell(self._result(operation_id, outcome))

    def _result(self, operation_id: OperationId, outcome: Outcome) -> Result:
        return Result(id=operation_id, outcome=outcome, calls=tuple(self._calls.get(operation_id, ())))

    def _tell(self, frame: UpFrame) -> None:
        if self._outbox is not None:
            self._outbox.put(frame)


def _log_fields(request: Request) -> dict[str, str]:
    """The fields of every log line about this request."""
    fields = {"operation_id": str(request.id)}
    if request.request_id is not None:
        fields["request_id"] = request.request_id
    if request.traceparent is not None and (trace_id := _TRACEPARENT.match(request.traceparent)) is not None:
        fields["trace_id"] = trace_id[1]
    return fields


def _in_a_word(outcome: Outcome) -> str:
    return outcome.code.value if isinstance(outcome, Failed) else outcome.outcome


def _answer(operation: NodeOperation, result: OperationResult) -> Outcome:
    if len(result.model_dump_json().encode()) <= _MOST_ANSWER_BYTES:
        return Succeeded(result=result)
    return Failed(
        code=FailureCode.HOST,
        message=f"The node's answer to {operation.op} is larger than it can send.",
        hint="Check the node itself: it has far more objects than it was designed for.",
    )


_INTERRUPTED = Failed(
    code=FailureCode.INTERRUPTED,
    message="The agent was restarted while this ran, and it was not asked for again.",
    hint="The next inventory shows what the host has.",
)
_NOT_AGAIN = Failed(
    code=FailureCode.INTERRUPTED,
    message="The agent was restarted while this ran; it may have been done, and is not done again.",
    hint="Check the machine's console, and order it again if it is needed.",
)
_CANCELLED = Failed(code=FailureCode.CANCELLED, message="Cancelled on the node.")
_PARTLY_CANCELLED = Failed(
    code=FailureCode.INTERRUPTED,
    message="Cancelled after the agent had been restarted while this ran; it may have been done before.",
    hint="Check the state of the machine, and repeat the operation if it is still needed.",
)
_NEVER_STARTED = Failed(code=FailureCode.CANCELLED, message="Cancelled before the node had started.")
