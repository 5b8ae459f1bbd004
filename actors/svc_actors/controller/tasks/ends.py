"""Stores the end of a task, however long the database or the resource's actor is away: no outcome is lost because of a
deadline.

Rejected: repeating every failure for ever. If a node's answer made the actor crash each time, the task stayed open for
good.
"""

from __future__ import annotations

from typing import Final, Protocol

import structlog
import trio

from svc_actors.controller.tasks.records import Ending, Task, TaskStatus, get_task
from svc_actors.runtime import ActorCrashed, DeliveryError, DomainError, HandlerOverdue
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError

_FIRST_PAUSE: Final = 0.2
MOST_CRASHES: Final = 3
"""How often an actor may crash over a task's outcome before the outcome itself counts as the cause."""
log = structlog.get_logger(__name__)


class WriteEnd(Protocol):
    """`alone`: write the end of the task without its effect on the resource."""

    async def __call__(self, task: Task, ending: Ending, *, alone: bool) -> None: ...


async def store_end(
    database: Database, task: Task, ending: Ending, end: WriteEnd, *, longest_pause: float
) -> Ending | None:
    """Returns the ending that was written; None if the task has ended otherwise meanwhile.

    If the actor crashes over the ending again and again, it cannot handle this ending. The task then ends as failed,
    with a message by the controller; if the actor crashes over this, too, the end is written without the actor. The
    next inventory then corrects the state of the resource.
    """
    # After 0 to 2 failures, the actor is asked to store the outcome as it is. After 3, the actor is asked to store an
    # outcome in words of our own. After 4, that outcome is stored without the actor; if this fails, the controller has
    # a defect, and the task stays open.
    pause, failures = _FIRST_PAUSE, 0
    while True:
        try:
            await end(task, ending, alone=failures > MOST_CRASHES)
            return ending
        except Exception as error:
            log.warning("task.end_not_stored", task_id=str(task.id), op=task.op, error=str(error))
            # A failure because of an outage is not counted, however long the outage is: the same outcome is stored once
            # the outage is over.
            if not may_succeed_later(error):
                failures += 1
            if failures > MOST_CRASHES + 1:
                raise
        if failures == MOST_CRASHES:
            ending = failed(
                ErrorCode.INTERNAL,
                "The controller could not record the outcome; its log has the cause.",
                "The node's next inventory shows its state.",
            )
        # The task may have ended already: the answer was lost after the commit, or a forced stop has superseded the
        # task.
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


def may_succeed_later(error: Exception) -> bool:
    """Whether the failure says only that the database or the actor is away or slow, so that a repeat may succeed."""
    if isinstance(error, ServiceError):
        return error.code is ErrorCode.UNAVAILABLE
    if isinstance(error, ActorCrashed):
        return isinstance(error.__cause__, HandlerOverdue)
    return isinstance(error, DeliveryError)


def failed(code: ErrorCode, message: str, hint: str | None = None) -> Ending:
    return Ending(TaskStatus.FAILED, message, error_code=code, hint=hint)
