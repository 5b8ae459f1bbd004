"""Records of tasks: a row for each, and the lines of its log.

Invariants:
- a task is created in the transaction of the change it belongs to, and ended in the transaction of its outcome;
- queued -> running -> succeeded, failed or cancelled; queued may end at once; an ended task never changes again;
- the positions of a task's log are 1, 2, 3, ... without a gap, in commit order: they are assigned under the lock of the
  task's row, so a client that polls with `after` never misses a line and never reads one twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from svc_actors import tracing
from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import Caller, NewEvent, Queryable, Record, Transaction, events
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import OperationResult

MOST_LINES: Final = 1_000
"""The most lines of a task's log from its work: the number of a node's progress messages has no limit of its own. The
service's own lines (that the task was cancelled, how it ended) are added beyond this limit."""


class TaskStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self in (TaskStatus.QUEUED, TaskStatus.RUNNING)


class ResourceKind(StrEnum):
    VM = "vm"
    NODE = "node"
    IMAGE = "image"
    VOLUME = "volume"


class LogLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Requester:
    """The caller who requested a task, for display; `actor_id` is None for the service itself."""

    actor_id: UUID | None
    actor: str
    via: str


@dataclass(frozen=True)
class Task:
    """`parameters` is what the work needs to resume after a restart, never a secret. `error_code` and `error_message`
    are set on a failed task; on a cancelled task only `error_message` is set and says why it was cancelled."""

    id: UUID
    op: str
    status: TaskStatus
    resource_kind: ResourceKind
    resource_id: UUID
    resource_name: str
    node_id: UUID | None
    project_id: UUID | None
    parameters: Mapping[str, Any]
    caller: Requester
    progress: int
    message: str
    error_code: ErrorCode | None
    error_message: str | None
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    """None: the task waits for its node without a limit, however long the node is away."""
    request_id: str | None
    """The request that created the task. This and `traceparent` are None in rows that are older than these columns."""
    traceparent: str | None
    """The span that created the task, if it was part of a trace."""


@dataclass(frozen=True)
class TaskEvent:
    """One line of a task's log."""

    position: int
    at: datetime
    level: LogLevel
    progress: int | None
    message: str


@dataclass(frozen=True)
class NewLine:
    """A line to be added to a task's log. `starts`: also mark the task as running. `message` None: only start the task,
    without a line. `beyond`: write the line even if the log is full."""

    task_id: UUID
    message: str | None
    percent: int | None = None
    level: LogLevel = LogLevel.INFO
    starts: bool = False
    beyond: bool = False


@dataclass(frozen=True)
class Ending:
    """How the work of a task ended. `result` is the host's last result, if the task succeeded."""

    status: TaskStatus
    message: str
    error_code: ErrorCode | None = None
    hint: str | None = None
    result: OperationResult | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is TaskStatus.SUCCEEDED

    @property
    def last_line(self) -> str:
        """The last line of the log: what happened, and what to do about it."""
        return self.message if self.hint is None else f"{self.message.rstrip('.')}. {self.hint}"


_NEVER: Final = datetime.max
"""The driver's value for `infinity`, which the row of a task without a deadline has."""


async def create_task(
    tx: Transaction,
    caller: Caller,
    *,
    op: str,
    resource_kind: ResourceKind,
    resource_id: UUID,
    resource_name: str,
    node_id: UUID | None,
    project_id: UUID | None,
    parameters: Mapping[str, object],
    timeout: float | None,
) -> Task:
    """Write a queued task and its event, in the transaction that changes the state. After `timeout` seconds without an
    outcome the task ends; with None it has no deadline. After the commit, hand the task to `TaskRunner.start`."""
    requester = {
        "actor_id": str(caller.actor_id) if caller.actor_id else None,
        "actor": caller.actor,
        "via": caller.via.value,
    }
    row = await tx.fetchone(
        """INSERT INTO tasks (op, resource_kind, resource_id, resource_name, node_id, project_id, parameters, caller,
                              deadline_at, request_id, traceparent)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce(now() + make_interval(secs => $9), 'infinity'), $10, $11)
           RETURNING *""",
        op,
        resource_kind.value,
        resource_id,
        resource_name,
        node_id,
        project_id,
        dict(parameters),
        requester,
        timeout,
        caller.request_id,
        span.traceparent if (span := tracing.current_span()) is not None else None,
    )
    task = as_task(row)
    await announce(tx, task)
    return task


async def get_task(queryable: Queryable, task_id: UUID) -> Task | None:
    row = await queryable.fetchrow("SELECT * FROM tasks WHERE id = $1", task_id)
    return as_task(row) if row else None


async def open_tasks(queryable: Queryable, *, older_than: float = 0.0) -> list[Task]:
    """Queued and running tasks in the database, oldest first; `older_than` in seconds. Tasks with a creation time in
    the future (the clock was set back) count as old."""
    rows = await queryable.fetch(
        """SELECT * FROM tasks WHERE status IN ('queued', 'running')
             AND NOT (created_at > now() - make_interval(secs => $1) AND created_at <= now())
           ORDER BY created_at, id""",
        older_than,
    )
    return [as_task(row) for row in rows]


async def open_task_of(queryable: Queryable, kind: ResourceKind, resource_id: UUID) -> Task | None:
    row = await queryable.fetchrow(
        """SELECT * FROM tasks WHERE resource_kind = $1 AND resource_id = $2 AND status IN ('queued', 'running')
           ORDER BY created_at LIMIT 1""",
        kind.value,
        resource_id,
    )
    return as_task(row) if row else None


async def start_task(tx: Transaction, task_id: UUID) -> Task | None:
    """Mark a queued task as running. None if it has ended meanwhile; a running (resumed) one is left as it is."""
    row = await tx.fetchrow(
        "UPDATE tasks SET status = 'running', started_at = now() WHERE id = $1 AND status = 'queued' RETURNING *",
        task_id,
    )
    if row:
        task = as_task(row)
        await announce(tx, task)
        return task
    found = await get_task(tx, task_id)
    return found if found and found.status.open else None


async def lift_deadline(tx: Transaction, task_id: UUID) -> None:
    """Remove the task's deadline: it ends with its nodes' answer, however late."""
    await tx.execute("UPDATE tasks SET deadline_at = $2 WHERE id = $1", task_id, _NEVER)


async def log_task(
    tx: Transaction,
    task_id: UUID,
    message: str,
    *,
    percent: int | None = None,
    level: LogLevel = LogLevel.INFO,
    starts: bool = False,
) -> TaskEvent | None:
    """Add a line to an open task's log; `starts` also marks the task as running. None if the task has ended: nothing is
    written after the end."""
    row = await tx.fetchrow(
        """WITH task AS (
               UPDATE tasks SET last_position = last_position + 1, message = $2,
                                progress = greatest(progress, coalesce($3, progress)),
                                status = CASE WHEN $5 THEN 'running' ELSE status END,
                                started_at = CASE WHEN $5 THEN coalesce(started_at, now()) ELSE started_at END
               WHERE id = $1 AND status IN ('queued', 'running') RETURNING *
           ), line AS (
               INSERT INTO task_events (task_id, position, level, progress, message)
               SELECT id, last_position, $4, $3, $2 FROM task RETURNING at AS line_at
           )
           SELECT task.*, line_at FROM task, line""",
        task_id,
        message,
        percent,
        level.value,
        starts,
    )
    if row is None:
        return None
    task, line = as_task(row), TaskEvent(row["last_position"], row["line_at"], level, percent, message)
    if starts:
        await announce(tx, task)
    await _announce_line(tx, task, line)
    return line


async def log_tasks(tx: Transaction, lines: Sequence[NewLine], *, wait: bool = False) -> dict[UUID, bool]:
    """Add a line to each of several tasks' logs, or start them, in one statement; returns for each task whether its log
    had room for the line. Even with a full log the task's message and progress are updated. Tasks that have ended are
    skipped, and so are tasks with a locked row, unless `wait` is set. Lines alone leave no commit mark."""
    with nullcontext() if any(line.starts for line in lines) else tx.unmarked():
        return await _log_tasks(tx, lines, wait)


async def _log_tasks(tx: Transaction, lines: Sequence[NewLine], wait: bool) -> dict[UUID, bool]:
    if wait:
        await tx.execute(
            "SELECT FROM tasks WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE",
            [line.task_id for line in lines],
        )
    rows = await tx.fetch(
        """WITH new AS (
               SELECT * FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::boolean[], $6::boolean[])
                   AS new (task_id, said, percent, level, starts, beyond)
           ), held AS (
               SELECT id, last_position FROM tasks WHERE id = ANY($1::uuid[]) AND status IN ('queued', 'running')
               FOR NO KEY UPDATE SKIP LOCKED
           ), judged AS (
               SELECT new.*, said IS NOT NULL AND (beyond OR last_position < $7) AS written
               FROM new JOIN held ON held.id = new.task_id
           ), task AS (
               UPDATE tasks SET last_position = last_position + written::integer,
                                message = coalesce(said, message), progress = greatest(progress, percent),
                                status = CASE WHEN starts THEN 'running' ELSE status END,
                                started_at = CASE WHEN starts THEN coalesce(started_at, now()) ELSE started_at END
               FROM judged WHERE tasks.id = judged.task_id
               RETURNING tasks.*, said, percent, level, written
           ), line AS (
               INSERT INTO task_events (task_id, position, level, progress, message)
               SELECT id, last_position, level, percent, said FROM task WHERE written
               RETURNING task_id, at AS line_at
           )
           SELECT task.*, line_at FROM task LEFT JOIN line ON line.task_id = task.id""",
        [line.task_id for line in lines],
        [line.message for line in lines],
        [line.percent for line in lines],
        [line.level.value for line in lines],
        [line.starts for line in lines],
        [line.beyond for line in lines],
        MOST_LINES,
    )
    starting = {line.task_id for line in lines if line.starts}
    for row in rows:
        task = as_task(row)
        if task.id in starting:
            await announce(tx, task)
        if row["written"]:
            level = LogLevel(row["level"])
            line = TaskEvent(row["last_position"], row["line_at"], level, row["percent"], row["said"])
            await _announce_line(tx, task, line)
    return {row["id"]: row["written"] for row in rows}


async def end_task(tx: Transaction, task_id: UUID, ending: Ending) -> Task | None:
    """Write the end of an open task, its last line and its event. None if the task had already ended: then the caller
    must not change anything else for this task in its transaction."""
    level = {TaskStatus.FAILED: LogLevel.ERROR, TaskStatus.CANCELLED: LogLevel.WARNING}.get(
        ending.status, LogLevel.INFO
    )
    row = await tx.fetchrow(
        """WITH task AS (
               UPDATE tasks
               SET status = $2, ended_at = now(), started_at = coalesce(started_at, now()), message = $5,
                   last_position = last_position + 1,
                   progress = CASE WHEN $2 = 'succeeded' THEN 100 ELSE progress END, error_code = $4,
                   error_message = CASE WHEN $2 = 'succeeded' THEN NULL ELSE $3 END
               WHERE id = $1 AND status IN ('queued', 'running') RETURNING *
           ), line AS (
               INSERT INTO task_events (task_id, position, level, message)
               SELECT id, last_position, $6, $5 FROM task RETURNING at AS line_at
           )
           SELECT task.*, line_at FROM task, line""",
        task_id,
        ending.status.value,
        ending.message,
        ending.error_code.value if ending.error_code else None,
        ending.last_line,
        level.value,
    )
    if row is None:
        return None
    task = as_task(row)
    await _announce_line(tx, task, TaskEvent(row["last_position"], row["line_at"], level, None, ending.last_line))
    await announce(tx, task)
    return task


async def read_log(queryable: Queryable, task_id: UUID, *, after: int, limit: int) -> list[TaskEvent]:
    rows = await queryable.fetch(
        "SELECT * FROM task_events WHERE task_id = $1 AND position > $2 ORDER BY position LIMIT $3",
        task_id,
        after,
        limit,
    )
    return [as_task_event(row) for row in rows]


async def announce(tx: Transaction, task: Task) -> None:
    """Append the event of a task's change."""
    await events.append(
        tx,
        NewEvent(
            kind=ControllerEvent.TASK,
            subject=str(task.id),
            project_id=task.project_id,
            node_id=task.node_id,
            administrators_only=task.project_id is None,
            payload={
                "id": str(task.id),
                "op": task.op,
                "status": task.status.value,
                "resource_kind": task.resource_kind.value,
                "resource_id": str(task.resource_id),
                "resource_name": task.resource_name,
                "progress": task.progress,
                "message": task.message,
                "error_code": task.error_code.value if task.error_code else None,
                "error_message": task.error_message,
                "cancel_requested": task.cancel_requested,
            },
        ),
    )


def as_task(row: Record) -> Task:
    caller = row["caller"]
    actor_id = caller.get("actor_id")
    return Task(
        id=row["id"],
        op=row["op"],
        status=TaskStatus(row["status"]),
        resource_kind=ResourceKind(row["resource_kind"]),
        resource_id=row["resource_id"],
        resource_name=row["resource_name"],
        node_id=row["node_id"],
        project_id=row["project_id"],
        parameters=row["parameters"],
        caller=Requester(
            actor_id=UUID(actor_id) if actor_id else None, actor=caller.get("actor") or "", via=caller.get("via") or ""
        ),
        progress=row["progress"],
        message=row["message"],
        error_code=ErrorCode(row["error_code"]) if row["error_code"] else None,
        error_message=row["error_message"],
        cancel_requested=row["cancel_requested"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        deadline_at=None if row["deadline_at"] == _NEVER else row["deadline_at"],
        request_id=row["request_id"],
        traceparent=row["traceparent"],
    )


def as_task_event(row: Record) -> TaskEvent:
    return TaskEvent(
        position=row["position"],
        at=row["at"],
        level=LogLevel(row["level"]),
        progress=row["progress"],
        message=row["message"],
    )


async def _announce_line(tx: Transaction, task: Task, line: TaskEvent) -> None:
    await events.append(
        tx,
        NewEvent(
            kind=ControllerEvent.TASK_LOG,
            subject=str(task.id),
            project_id=task.project_id,
            node_id=task.node_id,
            administrators_only=task.project_id is None,
            payload={
                "task_id": str(task.id),
                "position": line.position,
                "at": line.at.isoformat(),
                "level": line.level.value,
                "progress": line.progress,
                "message": line.message,
            },
        ),
    )
