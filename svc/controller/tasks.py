"""Tasks: current and past work, its log, and its cancellation. Every order answers with a `TaskModel`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.access import require_visible, visible_projects
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Blocks, Condition, Page, PageRequest, Sortable, equals, has_words, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc_actors.controller.tasks.runner import LogLevel, ResourceKind, Task, TaskStatus, as_task, get_task, read_log
from svc_actors.store import Queryable
from svc_common.errors import ErrorCode, forbidden, not_found

operations = Operations[Controller]()
TASK_COLUMNS = ("id", "op", "status", "resource=resource_name", "progress", "created=created_at")
"""What a table of tasks shows."""

LOG_PAGE = 1000

# Tasks that have not ended come after all that have.
_SORTABLE: Sortable = {
    "created_at": "created_at",
    "ended_at": "ended_at",
    "op": ("op", "created_at"),
    "status": ("status", "created_at"),
}


class TaskModel(Model):
    """`error_code` and `error_message` say why a task failed; `error_message` alone why it was cancelled. `node_id` is
    for staff and administrators. `request_id`: the request that ordered the task, as in logs and audit."""

    id: UUID
    op: str
    status: TaskStatus
    resource_kind: ResourceKind
    resource_id: UUID
    resource_name: str
    node_id: UUID | None
    project_id: UUID | None
    actor: str
    progress: Annotated[int, Field(ge=0, le=100)]
    message: str
    error_code: ErrorCode | None
    error_message: str | None
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    deadline_at: datetime | None
    request_id: str | None = None

    @classmethod
    def of(cls, task: Task, principal: Principal) -> TaskModel:
        return cls(
            id=task.id,
            op=task.op,
            status=task.status,
            resource_kind=task.resource_kind,
            resource_id=task.resource_id,
            resource_name=task.resource_name,
            node_id=task.node_id if principal.is_operator else None,
            project_id=task.project_id,
            actor=task.caller.actor,
            progress=task.progress,
            message=task.message,
            error_code=task.error_code,
            error_message=task.error_message,
            cancel_requested=task.cancel_requested,
            created_at=task.created_at,
            started_at=task.started_at,
            ended_at=task.ended_at,
            deadline_at=task.deadline_at,
            request_id=task.request_id,
        )


class TaskEventModel(Model):
    """One line of a task's log. Positions are 1, 2, 3, ... without a gap."""

    position: int
    at: datetime
    level: LogLevel
    progress: int | None
    message: str


class TaskFilters(PageRequest):
    """The filters of every list of tasks."""

    status: TaskStatus | None = None
    op: Annotated[str, Field(max_length=64)] | None = None


class TaskList(TaskFilters):
    node: UUID | None = None
    resource_kind: ResourceKind | None = None


class TaskRequest(Request):
    id: UUID


class TaskLogRequest(Request):
    """`after`: the last position that the caller has; at most 1,000 lines are returned at once."""

    id: UUID
    after: Annotated[int, Field(ge=0, le=2**62, description="Only lines after this position.")] = 0


@operations.declare(
    "task.list",
    "List tasks, newest first",
    Route.get("/tasks"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=TASK_COLUMNS,
)
async def list_tasks(context: Context[Controller], request: TaskList) -> Page[TaskModel]:
    return await page_of_tasks(
        context.services.database,
        context.principal,
        request,
        node_filter(request.node, context.principal, "node_id"),
        equals("resource_kind", request.resource_kind.value if request.resource_kind else None),
        known_total=_known_total(request, context.principal),
        blocks=_blocks(request, context.principal),
    )


def _known_total(request: TaskList, principal: Principal) -> Condition | None:
    """The number of tasks in the list: maintained counts of ended tasks, plus a count of the few open ones. None if the
    list is filtered otherwise."""
    wanted = (request.status, request.op, request.resource_kind)
    if request.q or request.node:
        return None
    if principal.is_operator:
        return Condition(
            """SELECT (SELECT coalesce(sum(number), 0) FROM list_numbers
                       WHERE list = 'tasks' AND ($1::text IS NULL OR words[1] = $1)
                         AND ($2::text IS NULL OR words[2] = $2) AND ($3::text IS NULL OR words[3] = $3))
                    + (SELECT count(*) FROM tasks
                       WHERE status IN ('queued', 'running') AND ($1::text IS NULL OR status = $1)
                         AND ($2::text IS NULL OR op = $2) AND ($3::text IS NULL OR resource_kind = $3))""",
            wanted,
        )
    if any(wanted):
        return None
    return Condition(
        """WITH own AS MATERIALIZED (SELECT project_id FROM project_members WHERE user_id = $1)
           SELECT (SELECT coalesce(sum(number), 0) FROM list_numbers
                   WHERE list = 'tasks by project' AND scope IN (SELECT project_id FROM own))
                + (SELECT count(*) FROM tasks
                   WHERE status IN ('queued', 'running') AND project_id IN (SELECT project_id FROM own))""",
        (principal.user_id,),
    )


def _blocks(request: TaskList, principal: Principal) -> Blocks | None:
    """Counts of all tasks by the day of their creation: maintained counts of ended tasks, and the open tasks one by
    one."""
    filters = (request.q, request.status, request.op, request.resource_kind, request.node)
    if not principal.is_operator or any(filters):
        return None
    numbers = """SELECT utc_day_begins(words[1]) AS bound, number FROM list_numbers WHERE list = 'tasks by day'
        UNION ALL
        SELECT utc_day_begins(utc_day(created_at)), 1 FROM tasks WHERE status IN ('queued', 'running')"""
    return Blocks("created_at", Condition(numbers))


async def page_of_tasks(
    queryable: Queryable,
    principal: Principal,
    request: TaskFilters,
    *conditions: Condition,
    known_total: Condition | None = None,
    blocks: Blocks | None = None,
) -> Page[TaskModel]:
    """The tasks that the caller may see and that meet the conditions (on columns of `tasks`). `known_total` gives their
    number, if a maintained count has it; `blocks` are maintained counts of parts of the list."""
    rows, total = await paginate(
        queryable,
        select="SELECT * FROM tasks",
        source="tasks",
        where=[
            visible_projects(principal),
            has_words(request.q, "resource_name", "op", words="text_words(ARRAY[resource_name, op])"),
            equals("status", request.status.value if request.status else None),
            equals("op", request.op),
            *conditions,
        ],
        sortable=_SORTABLE,
        default_sort="-created_at",
        request=request,
        known_total=known_total,
        blocks=blocks,
    )
    return Page[TaskModel].of([TaskModel.of(as_task(row), principal) for row in rows], total, request)


def node_filter(node_id: UUID | None, principal: Principal, column: str) -> Condition:
    """The filter by node. A customer's filter matches no task, since it would reveal on which node a machine is."""
    if node_id is not None and not principal.is_operator:
        return Condition("false")
    return equals(column, node_id)


@operations.declare("task.show", "Show a task", Route.get("/tasks/{id}"), access=Access.SIGNED_IN, scope=Scope.READ)
async def show_task(context: Context[Controller], request: TaskRequest) -> TaskModel:
    return TaskModel.of(await _visible_task(context, request.id), context.principal)


@operations.declare(
    "task.log",
    "Read a task's log after a position",
    Route.get("/tasks/{id}/events"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("position", "at", "level", "progress", "message"),
)
async def task_log(context: Context[Controller], request: TaskLogRequest) -> list[TaskEventModel]:
    await _visible_task(context, request.id)
    lines = await read_log(context.services.database, request.id, after=request.after, limit=LOG_PAGE)
    return [TaskEventModel(**vars(line)) for line in lines]


_KEEPS_THE_OWNER_OUT: Final = frozenset({"vm.backup", "vm.backups.forget"})
"""Tasks that may take hours, and during which the machine accepts no other order. So the machine's owner may cancel
them."""


@operations.declare(
    "task.cancel",
    "Cancel a task that has not ended",
    Route.post("/tasks/{id}/cancel"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def cancel_task(context: Context[Controller], request: TaskRequest) -> TaskModel:
    ordered = await _visible_task(context, request.id)
    theirs = context.principal.is_operator or ordered.op in _KEEPS_THE_OWNER_OUT
    if not theirs and not await _ordered_by_a_customer(context, ordered):
        raise forbidden("Your provider ordered this task; it was not cancelled.", hint="Ask the provider to cancel it.")
    task = await context.services.tasks.cancel(context.caller, request.id)
    return TaskModel.of(task, context.principal)


async def _visible_task(context: Context[Controller], task_id: UUID) -> Task:
    task = await get_task(context.services.database, task_id)
    if task is None:
        raise not_found("There is no such task.")
    await require_visible(context.services.database, context.principal, task.project_id, what="task")
    return task


async def _ordered_by_a_customer(context: Context[Controller], task: Task) -> bool:
    role = await context.services.database.fetchval("SELECT role FROM users WHERE id = $1", task.caller.actor_id)
    return bool(role == Role.CUSTOMER.value)
