"""The end of a task is written, however long the database or its actor is away: no outcome is lost to a deadline."""

from __future__ import annotations

from typing import Final, Protocol

import structlog
import trio

from svc_actors.controller.tasks.records import Ending, Task, TaskStatus, get_task
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.runtime import ActorCrashed, DeliveryError, DomainError, HandlerOverdue
from svc_actors.store import Database

_FIRST_PAUSE: Final = 0.2
MOST_CRASHES: Final = 3
"""How often an actor may crash over what a task has come to, before that is taken for the reason."""
log = structlog.get_logger(__name__)


class WriteEnd(Protocol):
    """`alone`: the end of the task without what it means for the resource."""

    async def __call__(self, task: Task, ending: Ending, *, alone: bool) -> None: ...


async def store_end(
    database: Database, task: Task, ending: Ending, end: WriteEnd, *, longest_pause: float
) -> Ending | None:
    """Gives what was written; None where the task has ended otherwise meanwhile.

    An end over which the actor crashes again and again is one that it cannot take: the task then ends with words of
    our own, and where even that cannot be taken, by itself. Its resource is settled by the next inventory. All of
    it is fewer crashes than make an actor rest.
    """
    pause, failures = _FIRST_PAUSE, 0
    while True:
        try:
            await end(task, ending, alone=failures > MOST_CRASHES)
            return ending
        except Exception as error:
            log.warning("task.end_not_stored", task_id=str(task.id), op=task.op, error=str(error))
            if not may_pass(error):
                failures += 1
            if failures > MOST_CRASHES + 1:
                raise
        if failures == MOST_CRASHES:
            ending = failed(
                ErrorCode.INTERNAL,
                "The controller could not record the outcome; its log has the cause.",
                "The node's next inventory shows its state.",
            )
        if not await _is_open(database, task):
            return None
        await trio.sleep(pause)
        pause = min(2 * pause, longest_pause)


async def _is_open(database: Database, task: Task) -> bool:
    try:
        found = await get_task(database, task.id)
    except DomainError:
        return True
    return found is not None and found.status.open


def may_pass(error: Exception) -> bool:
    """Whether the same is worth trying again without an end: while the database or the actor is away, or slow."""
    if isinstance(error, ServiceError):
        return error.code is ErrorCode.UNAVAILABLE
    if isinstance(error, ActorCrashed):
        return isinstance(error.__cause__, HandlerOverdue)
    return isinstance(error, DeliveryError)


def failed(code: ErrorCode, message: str, hint: str | None = None) -> Ending:
    return Ending(TaskStatus.FAILED, message, error_code=code, hint=hint)
