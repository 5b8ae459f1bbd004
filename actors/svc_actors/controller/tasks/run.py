"""A running task: its steps on a node, its log, its deadline and its cancellation.

Invariants:
- a step has the operation id `<task>:<step>` (with `:<attempt>` from the second attempt on). After a restart of the
  controller the agent answers for the id from its journal instead of repeating the step;
- when a task is cancelled, the cancellation of the current step is sent again and again until the node reports the
  step's outcome: so a cancellation that is lost with a connection is only delayed;
- `acknowledge` acknowledges outcomes to the agent; it is called once the task's end is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, Protocol
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.gateway import NodeLost, NodeUnavailable, OperationFailed
from svc_actors.controller.tasks.lines import LineWriter
from svc_actors.controller.tasks.records import MOST_LINES, LogLevel, NewLine, Task, TaskStatus
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import FACTS, FailureCode, NodeOperation, OperationId, OperationResult, Progress

log = structlog.get_logger(__name__)

MAX_ATTEMPTS: Final = 4
"""How often a repeatable step is tried if the agent died during it."""

_MOST_GIVEN_UP: Final = 4


class NodeGateway(Protocol):
    """The part of the gateway that tasks use."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def until_online(self, node_id: UUID) -> None: ...

    async def perform(
        self,
        node_id: UUID,
        operation_id: OperationId,
        operation: NodeOperation,
        *,
        timeout: float,
        on_progress: Callable[[Progress], Awaitable[None]] | None = None,
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...

    async def cancel(self, node_id: UUID, operation_id: OperationId) -> None: ...

    def joined_streams(self, one: UUID, other: UUID) -> AbstractAsyncContextManager[tuple[str, str]]: ...


class TaskFailed(ServiceError):  # noqa: N818 - named for what it says
    """The task has failed for good, whatever the code. Unlike the service's own `unavailable`, this failure is not
    retried."""


class HostRefused(TaskFailed):
    """A step failed on its node. `failure` is the host's code, or None if the node never answered."""

    def __init__(self, code: ErrorCode, message: str, *, hint: str | None, failure: FailureCode | None) -> None:
        super().__init__(code, message, hint=hint)
        self.failure = failure


class LostWithNode(TaskFailed):
    """The task's node was declared lost: it takes no further steps, and will not report the outcome of earlier ones."""

    def __init__(self, lost: NodeLost) -> None:
        super().__init__(lost.code, lost.message)


class TaskRun:
    """The interface for the work of one task. `deadline` is on Trio's clock."""

    def __init__(
        self, task: Task, lines: LineWriter, gateway: NodeGateway, *, deadline: float, cancel_interval: float
    ) -> None:
        self.task = task
        self.scope = trio.CancelScope()
        self._lines = lines
        self._gateway = gateway
        self._deadline = deadline
        self._cancel_interval = cancel_interval
        self._cancelled = trio.Event()
        self._performed: dict[OperationId, UUID] = {}
        self._in_operation: set[OperationId] = set()
        self._uninterrupted = False
        self._last_line: tuple[int | None, str] | None = None
        self._full_at: int | None = None
        """The progress at which the log became full: lines up to this progress are dropped."""
        self._left_out = 0
        self._started = task.status is TaskStatus.RUNNING
        if task.cancel_requested:
            self._cancelled.set()

    async def log(self, message: str, *, percent: int | None = None, level: LogLevel = LogLevel.INFO) -> None:
        """Add a line to the task's log. The same line twice in a row is written once. The first line marks the task as
        running, if this is not recorded yet."""
        if self._last_line == (percent, message):
            return
        self._last_line = (percent, message)
        if self._full_at is not None and (percent or 0) <= self._full_at:
            self._left_out += 1
            return
        if not await self._lines.add(NewLine(self.task.id, message, percent, level, starts=not self._started)):
            self._left_out += 1
            self._full_at = max(percent or 0, self._full_at or 0)
        self._started = True

    async def close_log(self) -> None:
        """Log how many lines were left out because the log was full."""
        if self._left_out:
            message = f"{self._left_out} more lines were left out: a log has {MOST_LINES} at most."
            await self._lines.add(NewLine(self.task.id, message, level=LogLevel.WARNING, beyond=True))
            self._left_out = 0

    async def start(self) -> None:
        """Record the task as running, unless it has ended meanwhile."""
        await self._lines.add(NewLine(self.task.id, None, starts=True))
        self._started = True

    def resume(self, task: Task) -> None:
        """Continue with `task`, whose record says running."""
        self.task, self._started = task, True

    @property
    def started(self) -> bool:
        """Whether the task is recorded as running."""
        return self._started

    async def perform(
        self,
        operation: NodeOperation,
        *,
        step: str,
        timeout: float | None = None,
        node_id: UUID | None = None,
        span: tuple[int, int] = (0, 100),
    ) -> OperationResult:
        """Perform one step on the task's node, or another, and return its result. `timeout` is in seconds, by default
        the operation's own, and limited by the task's deadline. Steps may be performed concurrently. `span` is the part
        of the task's progress, in percent, that this step's own progress covers.

        Raises `HostRefused` if the step failed on the host or the node did not answer in time, `LostWithNode`. A step
        that was interrupted by a crash of the agent is tried again if the operation is repeatable.
        """
        seconds = task_seconds(operation.op) if timeout is None else timeout
        node = node_id or self._node_id()
        attempt = 1
        while True:
            try:
                return await self._perform_once(
                    node, operation_id(self.task.id, step, attempt), operation, seconds, span
                )
            except HostRefused as refusal:
                if (
                    refusal.failure is not FailureCode.INTERRUPTED
                    # A repeat could end as "cancelled", which may be wrong: the first attempt may have had effects.
                    or self.cancel_requested
                    or not operation.facts.repeatable
                    or attempt == MAX_ATTEMPTS
                ):
                    raise
            attempt += 1
            await self.log("The node agent was restarted meanwhile; asking again.", level=LogLevel.WARNING)

    async def until_node_online(self) -> None:
        """Wait for the task's node, as long as it takes, and say so in the log. Raises `LostWithNode`."""
        node_id = self._node_id()
        if not self._gateway.is_online(node_id):
            await self.log("Waiting for the node to come back.")
        try:
            await self._gateway.until_online(node_id)
        except NodeLost as lost:
            raise LostWithNode(lost) from lost

    @property
    def node_online(self) -> bool:
        return self._gateway.is_online(self._node_id())

    @property
    def remaining(self) -> float:
        """Seconds until the task's deadline; infinite if it has none."""
        return max(0.0, self._deadline - trio.current_time())

    @property
    def cancel_requested(self) -> bool:
        return self._cancelled.is_set()

    def request_cancel(self) -> None:
        """Cancel the task: the current step is cancelled on its node and its outcome awaited; local work is stopped."""
        self._cancelled.set()
        if not self._in_operation and not self._uninterrupted:
            self.scope.cancel()

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Until the block ends, a cancellation ends only steps on nodes and no local work, so that the steps' results
        are recorded."""
        before, self._uninterrupted = self._uninterrupted, True
        try:
            yield
        finally:
            self._uninterrupted = before

    async def withdraw(self) -> None:
        """Cancel the current steps on their nodes without awaiting the outcome."""
        while self._in_operation:
            given_up = self._in_operation.pop()
            await self._gateway.cancel(self._performed[given_up], given_up)

    async def acknowledge(self) -> None:
        """The task's end is stored: the agents may forget the outcomes of its steps."""
        for performed, node_id in self._performed.items():
            await self._gateway.acknowledge(node_id, performed)

    def _node_id(self) -> UUID:
        if self.task.node_id is None:
            raise LookupError(f"task {self.task.id} is of no node, and its work asks for one")
        return self.task.node_id

    async def _perform_once(
        self, node: UUID, performed: OperationId, operation: NodeOperation, timeout: float, span: tuple[int, int]
    ) -> OperationResult:
        async def progressed(progress: Progress) -> None:
            await self._progressed(progress, *span)

        self._performed[performed] = node
        self._in_operation.add(performed)
        outcome: OperationResult | HostRefused | LostWithNode
        if self.cancel_requested:
            # The cancellation is passed on before the operation is sent, so that a node that does not have the
            # operation yet will not start it.
            await self._gateway.cancel(node, performed)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_cancelling, node, performed)
            try:
                outcome = await self._gateway.perform(
                    node,
                    performed,
                    operation,
                    timeout=min(timeout, self.remaining),
                    on_progress=progressed,
                )
            except OperationFailed as failure:
                outcome = HostRefused(
                    _CODES[failure.code], failure.message, hint=failure.hint, failure=FailureCode(failure.code)
                )
            except NodeLost as lost:
                outcome = LostWithNode(lost)
            except NodeUnavailable as failure:
                await self._gateway.cancel(node, performed)
                outcome = HostRefused(failure.code, failure.message, hint=failure.hint, failure=None)
            nursery.cancel_scope.cancel()
        self._in_operation.discard(performed)
        if isinstance(outcome, HostRefused | LostWithNode):
            raise outcome
        return outcome

    async def _progressed(self, progress: Progress, begin: int, end: int) -> None:
        try:
            await self.log(progress.message, percent=begin + (end - begin) * progress.percent // 100)
        except ServiceError as error:
            # Failing to store a progress line must not fail the operation.
            log.warning("task.progress_not_stored", task_id=str(self.task.id), error=error.message)

    async def _keep_cancelling(self, node: UUID, performed: OperationId) -> None:
        await self._cancelled.wait()
        while True:
            await self._gateway.cancel(node, performed)
            await trio.sleep(self._cancel_interval)


def task_seconds(op: str) -> float:
    """How long a task named after the node operation `op` may take."""
    seconds = FACTS[op].task_seconds
    assert seconds is not None, f"no task is {op}"
    return seconds


def operation_id(task_id: UUID, step: str, attempt: int = 1) -> OperationId:
    suffix = "" if attempt == 1 else f":{attempt}"
    return OperationId(f"{task_id}:{step}{suffix}")


_CODES: Final = {
    FailureCode.INVALID: ErrorCode.INVALID,
    FailureCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    FailureCode.CONFLICT: ErrorCode.CONFLICT,
    FailureCode.CAPACITY: ErrorCode.CAPACITY,
    FailureCode.UNSUPPORTED: ErrorCode.CONFLICT,
    FailureCode.TIMED_OUT: ErrorCode.NOT_READY,
    FailureCode.CANCELLED: ErrorCode.CONFLICT,
    FailureCode.HOST: ErrorCode.UNAVAILABLE,
    FailureCode.INTERRUPTED: ErrorCode.UNAVAILABLE,
    FailureCode.TARGET: ErrorCode.UNAVAILABLE,
}


async def retry_until_final(
    run: TaskRun,
    operation: NodeOperation,
    final: Callable[[HostRefused], bool],
    *,
    step: str,
    span: tuple[int, int] = (0, 100),
) -> OperationResult:
    """Perform the step until it succeeds or its refusal is final. Each attempt has its own id and is made while the
    node is online. Raises `HostRefused`, `LostWithNode`."""
    attempt = 1
    while True:
        await run.until_node_online()
        try:
            return await run.perform(operation, step=step if attempt == 1 else f"{step}-{attempt}", span=span)
        except HostRefused as refusal:
            # A step that is reported as cancelled was cancelled by an earlier attempt, which was given up before the
            # controller restarted. So this is no refusal, and the step is tried again.
            given_up = refusal.failure is FailureCode.CANCELLED and attempt < _MOST_GIVEN_UP
            if not given_up and final(refusal):
                raise
        attempt += 1


def has_node_answer(refusal: HostRefused) -> bool:
    """Whether the node has answered and knows what it has done: only then the refusal is final."""
    return refusal.failure not in (None, FailureCode.INTERRUPTED)
