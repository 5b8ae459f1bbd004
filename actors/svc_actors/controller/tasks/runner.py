"""The work of tasks: started after the commit that created them, resumed after a restart, ended exactly once.

How a task survives a restart: its row says that it is open, and nothing else is needed to continue. After a restart the
work runs again from its start: each step asks the node under the same operation id, and for a step that was done
already the agent answers from its journal, so nothing is done twice. An outcome is acknowledged to the agent only once
the task's end is stored; while the database is away, the runner keeps the outcome, whatever the deadline. A task whose
work could not continue stays open, and is resumed later.

Invariants:
- an open task is hosted by this process, or resumed by the next sweep; it ends by its deadline in any case. A task
  without a deadline (a deletion, a reinstallation) waits for its node as long as the node is away, and occupies only
  its row and one Trio task;
- the end and its effect on the resource are one transaction (`end` of the handler); a task that has ended is never
  changed;
- a deadline is counted on the monotonic clock from when the work was first started or resumed here, so a wall clock
  that jumps ends nothing early and keeps nothing open; a resumed task gets enough time to hear from its node what was
  done meanwhile.

Rejected: long work within actors. A task's row survives a restart and an actor does not, and the work would delay the
actor's other messages. So the runner hosts all work, and asks the actor only to record its end.

Why: docs/decisions/0003-long-work-has-a-row.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.tasks.ends import MOST_CRASHES, failed, may_succeed_later, store_end
from svc_actors.controller.tasks.lines import LineWriter
from svc_actors.controller.tasks.records import (
    Ending,
    LogLevel,
    Requester,
    ResourceKind,
    Task,
    TaskEvent,
    TaskStatus,
    announce,
    as_task,
    create_task,
    end_task,
    get_task,
    lift_deadline,
    log_task,
    open_task_of,
    open_tasks,
    read_log,
    start_task,
)
from svc_actors.controller.tasks.run import HostRefused, LostWithNode, NodeGateway, TaskFailed, TaskRun, operation_id
from svc_actors.runtime import ActorCrashed, DomainError
from svc_actors.store import Caller, Database, LoopAlert, Target, Transaction, audit, keep_repeating, keep_running
from svc_actors.tracing import Kind, Origin, Tracer, current_span, working_for
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found
from svc_nodeagent.protocol import FailureCode, OperationId, OperationResult

__all__ = [
    "Ending",
    "HostRefused",
    "LogLevel",
    "LostWithNode",
    "NodeGateway",
    "Requester",
    "ResourceKind",
    "Task",
    "TaskEvent",
    "TaskRun",
    "TaskRunner",
    "TaskStatus",
    "as_task",
    "create_task",
    "end_task",
    "get_task",
    "lift_deadline",
    "log_task",
    "open_task_of",
    "open_tasks",
    "operation_id",
    "read_log",
    "start_task",
]

RESUMED_SECONDS: Final = 30.0
"""A resumed task has at least this long, whatever the wall clock says: its outcome may be in its node's journal."""

_FIRST_TAKE_UP: Final = 1.0
_STARTS_WITHIN: Final = 0.25
"""Seconds after which a new task is recorded as started, unless its first log line has recorded that or the task has
ended. Most tasks end earlier and need no transaction for their start."""
_STARTING_AT_ONCE: Final = 16
"""How many tasks may be recorded as started at the same time. After a restart thousands of tasks resume. They may all
wait for their nodes at once, but their transactions are limited, so that they do not take every connection of the
database."""
log = structlog.get_logger(__name__)

Work = Callable[[TaskRun], Awaitable[OperationResult | None]]
End = Callable[[Task, Ending], Awaitable[None]]


@dataclass(frozen=True)
class _Handler:
    work: Work
    end: End | None
    irrevocable: str | None


class TaskRunner:
    """Hosts the work of every open task. One per process; it runs in the composer's nursery."""

    def __init__(
        self,
        database: Database,
        gateway: NodeGateway,
        *,
        sweep_interval: float = 15.0,
        cancel_interval: float = 5.0,
        alert: LoopAlert | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._alert = alert
        self._tracer = tracer
        self.database = database
        self.gateway = gateway
        self.begun = 0
        self.ended: Counter[TaskStatus] = Counter()
        self._cancel_interval = cancel_interval
        self._sweep_interval = sweep_interval
        self._handlers: dict[str, _Handler] = {}
        self._hosted: dict[UUID, TaskRun] = {}
        self._working: dict[UUID, trio.CancelScope] = {}
        self._deadlines: dict[UUID, float] = {}
        self._crashes = Counter[UUID]()
        """How often an actor has crashed during the work of a task, for tasks that are still open."""
        self._nursery: trio.Nursery | None = None
        self._draining = False
        self._left_open = trio.Event()
        self._emptied = trio.Event()
        self._context = copy_context()
        self._starting = trio.CapacityLimiter(_STARTING_AT_ONCE)
        self._lines = LineWriter(database)

    def handles(self, op: str, work: Work, *, end: End | None = None, irrevocable: str | None = None) -> None:
        """Register the work of tasks of this operation. `work` returns when the task has succeeded (with the host's
        last result, if `end` needs it), or raises `ServiceError`. `end(task, ending)` calls `end_task` and writes the
        effect on the resource in the same transaction; without `end`, only the task is ended. `irrevocable` says why
        such a task cannot be cancelled.
        """
        self._handlers[op] = _Handler(work, end, irrevocable)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Resume open tasks, then host the work of tasks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery, self._context = nursery, copy_context()
            nursery.start_soon(self._lines.run)
            try:
                for task in await open_tasks(self.database):
                    self._resume(task)
                task_status.started()
                nursery.start_soon(keep_running, "tasks left open", self._take_up_again, self._alert)
                await keep_repeating("task sweep", self._sweep_interval, self._sweep, self._alert)
            finally:
                self._nursery = None

    def start(self, task: Task) -> None:
        """Start the work of a task that has just been committed. A repeated call does nothing. A call before `run` or
        after `drain` does nothing, either: `run` in this process, or in the next one, finds the task in the
        database."""
        self._begin(task, new=True)

    def _resume(self, task: Task) -> None:
        """Start the work of a task that was open when it was read; it may have ended since."""
        self._begin(task, new=False)

    def _begin(self, task: Task, *, new: bool) -> None:
        if self._nursery is None or self._draining or task.id in self._hosted:
            return
        self._hosted[task.id] = run = TaskRun(
            task,
            self._lines,
            self.gateway,
            deadline=self._deadline(task),
            cancel_interval=self._cancel_interval,
        )
        self.begun += 1
        # Started in the runner's own context: context variables of the handler that ordered the task do not apply to
        # the work.
        host = partial(self._host, run, new=new)
        self._context.run(partial(self._nursery.start_soon, host, name=f"task {task.op} {task.id}"))
        if new:
            self._context.run(partial(self._nursery.start_soon, self._start_in_time, run))

    async def _start_in_time(self, run: TaskRun) -> None:
        await trio.sleep(_STARTS_WITHIN)
        if self._hosted.get(run.task.id) is run and not run.started:
            try:
                await run.start()
            except DomainError as error:
                # The work continues: its next log line, or its end, records the start as well.
                log.warning("task.start_not_stored", task_id=str(run.task.id), op=run.task.op, error=str(error))

    async def drain(self, deadline: float) -> None:
        """Shut down within at most `deadline` seconds: store the ends that are known, start nothing new.

        A task without an outcome stays open, and its operation is not cancelled on its node; the next start resumes it.
        Actors record the ends, so this runs before the drain of the actor system, after which actors take no messages
        from outside.
        """
        self._draining = True
        # `_working` has the scope of the work alone, not of `store_end` after it: an outcome that is known is still
        # stored.
        for working in self._working.values():
            working.cancel()
        with trio.move_on_after(deadline):
            while self._hosted:
                self._emptied = trio.Event()
                await self._emptied.wait()

    @property
    def draining(self) -> bool:
        return self._draining

    async def cancel(self, caller: Caller, task_id: UUID) -> Task:
        """Ask for a task's end: it ends at once if it was not started, else as soon as its node has given up the
        operation.

        Raises not_found; conflict if the task has ended, or if its kind cannot be cancelled.
        """

        async def work(tx: Transaction) -> Task:
            row = await tx.fetchrow("SELECT * FROM tasks WHERE id = $1 FOR UPDATE", task_id)
            if row is None:
                raise not_found("There is no such task.")
            task = as_task(row)
            if not task.status.open:
                raise conflict(
                    f"The task has ended already: {task.status.value}.", details={"status": task.status.value}
                )
            handler = self._handlers.get(task.op)
            if handler is not None and handler.irrevocable:
                raise conflict(handler.irrevocable)
            if not task.cancel_requested:
                await tx.execute("UPDATE tasks SET cancel_requested = true WHERE id = $1", task_id)
                task = replace(task, cancel_requested=True)
                await log_task(tx, task_id, f"Cancellation requested by {caller.actor}.", level=LogLevel.WARNING)
                await announce(tx, task)
            await audit.record(tx, caller, Target("task", task_id, f"{task.op} {task.resource_name}", task.project_id))
            return task

        task = await self.database.transact(work)
        run = self._hosted.get(task_id)
        if run is not None:
            run.request_cancel()
        else:
            # The task was left open and waits for the next round. It is resumed now, with `cancel_requested` set, so
            # that it ends.
            self._resume(task)
        return task

    def abandon(self, task_id: UUID) -> None:
        """Stop hosting a task whose end another transaction has written (it was superseded)."""
        run = self._hosted.get(task_id)
        if run is not None:
            run.scope.cancel()

    async def forgettable(self, operation_ids: Sequence[OperationId]) -> list[OperationId]:
        """The operations among `operation_ids`, which an agent still remembers, whose task has ended: nobody will ask
        for their outcome."""
        by_task: dict[UUID, list[OperationId]] = {}
        for kept in operation_ids:
            try:
                by_task.setdefault(UUID(kept.split(":", 1)[0]), []).append(kept)
            except ValueError:
                continue  # The id is not that of a task's operation but of a watch, which acknowledges it.
        rows = await self.database.fetch(
            "SELECT id FROM tasks WHERE id = ANY($1::uuid[]) AND status NOT IN ('queued', 'running')", list(by_task)
        )
        return [kept for row in rows for kept in by_task[row["id"]]]

    def _deadline(self, task: Task) -> float:
        """The task's deadline on Trio's clock. It is remembered while the task is open, so that a task which is resumed
        again and again still ends."""
        if task.id not in self._deadlines:
            if task.deadline_at is None:
                return math.inf
            # The task gets at least enough time to read the node's journal, even if the controller was away until after
            # the deadline, and at most its whole lifetime, in case the wall clock was set back.
            lifetime = (task.deadline_at - task.created_at).total_seconds()
            left = (task.deadline_at - datetime.now(UTC)).total_seconds()
            remaining = min(max(left, RESUMED_SECONDS), lifetime)
            self._deadlines[task.id] = trio.current_time() + remaining
        return self._deadlines[task.id]

    async def _sweep(self) -> None:
        # Younger tasks are left out: they may have just been committed and are about to be started.
        for task in await open_tasks(self.database, older_than=self._sweep_interval / 2):
            self._resume(task)

    async def _take_up_again(self) -> None:
        """Resume tasks that were left open after a second: by then the database or the actor is usually back, and a
        caller waits. While tasks are left open again and again, the pause doubles, up to the interval of the sweep.

        Rejected: leaving this to the sweep. A task then stayed open for up to 22 seconds after an outage, and its
        machine answered conflict meanwhile."""
        pause, last = _FIRST_TAKE_UP, -math.inf
        while True:
            await self._left_open.wait()
            self._left_open = trio.Event()
            await trio.sleep(pause)
            for task in await open_tasks(self.database):
                self._resume(task)
            now = trio.current_time()
            lasting = now - last < 2 * self._sweep_interval
            pause = min(2 * pause, self._sweep_interval) if lasting else _FIRST_TAKE_UP
            last = now

    async def _host(self, run: TaskRun, *, new: bool) -> None:
        with working_for(self._origin(run.task, new=new)):
            await self._carry_out(run, new=new)

    def _origin(self, task: Task, *, new: bool) -> Origin:
        if self._tracer is None:
            return Origin(task.request_id, owner_id=task.project_id)
        told: dict[str, str | bool] = {
            "svc.task.id": str(task.id),
            "svc.task.op": task.op,
            "svc.task.resumed": not new,
            f"svc.{task.resource_kind}.id": str(task.resource_id),
        }
        span = self._tracer.resume(f"task {task.op}", Kind.INTERNAL, told, parent=task.traceparent)
        return Origin(task.request_id, span, task.project_id)

    async def _carry_out(self, run: TaskRun, *, new: bool) -> None:
        began = trio.current_time()
        ending: Ending | None = None
        try:
            with trio.CancelScope() as self._working[run.task.id]:
                ending = await self._work(run, new=new)
            # This is outside the scope that `drain` cancels. The end is stored first; only then may the agent forget
            # the outcome. If the controller crashes in between, the agent's next hello names the operation, and
            # `forgettable` finds it.
            if ending is not None:
                await self._close_log(run)
                ending = await store_end(self.database, run.task, ending, self._end, longest_pause=self._sweep_interval)
            if ending is not None:
                self.ended[ending.status] += 1
                await run.acknowledge()
                self._tell_end(run.task, ending, trio.current_time() - began)
            self._deadlines.pop(run.task.id, None)
            self._crashes.pop(run.task.id, None)
        except DomainError as error:
            # The database or an actor was unavailable: the task stays open and is resumed later.
            self._left_open.set()
            log.warning("task.left_open", task_id=str(run.task.id), op=run.task.op, error=str(error))
        except Exception:
            # A defect in one task's work must not end the others. The sweep resumes this task, too.
            log.exception("task.left_open", task_id=str(run.task.id), op=run.task.op)
        finally:
            del self._working[run.task.id]
            del self._hosted[run.task.id]
            if not self._hosted:
                self._emptied.set()

    def _tell_end(self, task: Task, ending: Ending, seconds: float) -> None:
        error_code = ending.error_code.value if ending.error_code is not None else None
        log.info(
            "task.ended",
            task_id=str(task.id),
            op=task.op,
            status=ending.status.value,
            error_code=error_code,
            seconds=round(seconds, 3),
        )
        if (span := current_span()) is not None:
            span.note({"svc.task.status": ending.status.value})
            if error_code is not None:
                span.fail(error_code)

    async def _work(self, run: TaskRun, *, new: bool) -> Ending | None:
        """Run the work to its ending. None: the task had ended, was abandoned, or will be resumed. A resumed task is
        recorded as started first; the same statement also finds out whether it has ended."""
        handler = self._handlers.get(run.task.op)
        if handler is None:
            return failed(ErrorCode.INTERNAL, f"This version of the service does not know how to do {run.task.op}.")
        # The task was cancelled while it was left open, or before a restart.
        if run.cancel_requested and run.task.status is TaskStatus.QUEUED:
            return Ending(TaskStatus.CANCELLED, "Cancelled before it was started.")
        if not new:
            async with self._starting:
                started = await self.database.transact(lambda tx: start_task(tx, run.task.id))
            if started is None:
                return None
            run.resume(started)
        ending: Ending | None = None
        # The work can be cut short in two ways: by the deadline, or through `run.scope`, which a cancellation and
        # `abandon` cancel.
        with trio.move_on_after(run.remaining) as overdue, run.scope:
            ending = await self._attempt(handler, run)
        if ending is not None:
            return ending
        # A live migration lifts its task's deadline once the record names the target; this run still had the old
        # deadline.
        if overdue.cancelled_caught and await self._deadline_was_lifted(run.task):
            self._left_open.set()
            return None  # The task stays open and is resumed without a deadline.
        await run.withdraw()
        if overdue.cancelled_caught:
            return failed(ErrorCode.UNAVAILABLE, "The task had no outcome before its deadline.")
        # The work was cut short either by a cancellation, or by `abandon`: then another transaction has written the
        # end.
        return Ending(TaskStatus.CANCELLED, "Cancelled.") if run.cancel_requested else None

    async def _deadline_was_lifted(self, task: Task) -> bool:
        found = await get_task(self.database, task.id)
        return found is not None and found.status.open and found.deadline_at is None and task.deadline_at is not None

    async def _attempt(self, handler: _Handler, run: TaskRun) -> Ending:
        try:
            result = await handler.work(run)
        except ServiceError as error:
            if isinstance(error, HostRefused) and error.failure is FailureCode.CANCELLED:
                return Ending(TaskStatus.CANCELLED, "Cancelled.")
            if error.code is ErrorCode.UNAVAILABLE and not isinstance(error, TaskFailed):
                # This failure is the controller's (its database, an actor), not the host's: it is repeated until the
                # deadline.
                raise
            return failed(error.code, error.message, error.hint)
        except ActorCrashed as crash:
            # The actor's handler exceeded its deadline because the database was slow, so a repeat may succeed.
            if may_succeed_later(crash):
                raise
            # The node's report may be one that no actor can handle, and a repeat would report the same. So after three
            # crashes the task fails, before the crashes make the actor refuse other callers' orders.
            self._crashes[run.task.id] += 1
            if self._crashes[run.task.id] < MOST_CRASHES:
                raise
            log.exception("task.crashed", task_id=str(run.task.id), op=run.task.op)
            return failed(ErrorCode.INTERNAL, "The controller failed while doing this; its log has the cause.")
        except DomainError:
            raise
        except Exception:
            # A repeat would meet the same defect, so the task ends here. Other tasks go on.
            log.exception("task.crashed", task_id=str(run.task.id), op=run.task.op)
            return failed(ErrorCode.INTERNAL, "The controller failed while doing this; its log has the cause.")
        return Ending(TaskStatus.SUCCEEDED, "Done.", result=result)

    async def _close_log(self, run: TaskRun) -> None:
        try:
            await run.close_log()
        except DomainError as error:
            log.warning("task.log_not_closed", task_id=str(run.task.id), error=str(error))

    async def _end(self, task: Task, ending: Ending, *, alone: bool) -> None:
        handler = self._handlers.get(task.op)
        if handler is not None and handler.end is not None and not alone:
            await handler.end(task, ending)
            return
        await self.database.transact(lambda tx: end_task(tx, task.id, ending))
