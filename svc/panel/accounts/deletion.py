"""DELETE /users/{id}: the account is suspended at once and removed by a job; an account that owns something is refused.
A deletion that a restart interrupted continues as a new job; one that fails restores the account.

Invariant: deleting an account destroys nothing that it owns. Sites and zones must be deleted or given to somebody else
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import UUID

from svc.identity import person_records
from svc.identity.deletion import remove_person
from svc.identity.people import PersonRequest
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.store import Database, ForeignKeyViolationError, Queryable, Transaction, audit, service_itself
from svc_common.errors import ServiceError, conflict

operations = Operations[Panel]()

KIND: Final = "user.delete"
_REASON: Final = "This account is being deleted."
_NAMED: Final = 5


@operations.declare(
    "user.delete",
    "Delete an account that owns nothing",
    Route.delete("/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete(context: Context[Panel], request: PersonRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        person = await person_records.locked(tx, request.id)
        if person.id == context.principal.user_id:
            raise conflict(
                "You cannot delete your own account; nothing was changed.", hint="Ask another administrator."
            )
        await person_records.keep_an_administrator(tx, context, person)
        await _refuse_owner(tx, person.id)
        before = person.suspension_reason if person.suspension_reason != _REASON else None
        await person_records.suspend(tx, person.id, _REASON)
        title = f"Delete the account {person.email}"
        job = await _enqueue(tx, title, {"user_id": str(person.id), "suspended_for": before})
        await audit.record(tx, context.caller, person.target, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


class AccountDeletion:
    """The work of the job. It can be repeated: if the person is deleted already, it succeeds."""

    def __init__(self, database: Database, remove_backups: Callable[[UUID], Awaitable[None]]) -> None:
        self._database = database
        self._remove_backups = remove_backups

    async def remove_account(self, run: JobRun) -> None:
        user_id = UUID(run.parameters["user_id"])
        await _refuse_owner(self._database, user_id)
        # Remove the backups of this person's deleted sites: they were kept only for this person.
        await self._remove_backups(user_id)

        async def work(tx: Transaction) -> None:
            await _refuse_owner(tx, user_id)
            await remove_person(tx, user_id)

        try:
            await self._database.transact(work)
        except ForeignKeyViolationError:
            raise _owns("something") from None

    async def ended(self, tx: Transaction, job: Job) -> None:
        """An interrupted deletion is queued again. After a failed or cancelled one the account's previous state is
        restored, unless an administrator has restored the account meanwhile."""
        user_id = UUID(job.parameters["user_id"])
        reason = await tx.fetchval("SELECT suspension_reason FROM users WHERE id = $1 FOR UPDATE", user_id)
        if job.status is JobStatus.SUCCEEDED or reason != _REASON:
            return
        if job.error == INTERRUPTED:
            await _enqueue(tx, job.title, job.parameters)
            return
        before = job.parameters.get("suspended_for")
        changes = (
            {"suspension_reason": before} if before is not None else {"suspended_at": None, "suspension_reason": None}
        )
        person = await person_records.change(tx, user_id, changes)
        await audit.record(tx, service_itself("person.restore"), person.target, {"job": job.id})


async def _enqueue(tx: Transaction, title: str, parameters: Mapping[str, Any]) -> Job:
    """`parameters`: the account's person, and the reason of an earlier suspension, if there was one."""
    return await enqueue(
        tx,
        NewJob(kind=KIND, title=title, job_class=JobClass.SYSTEM, steps=("remove_account",), parameters=parameters),
    )


async def _refuse_owner(queryable: Queryable, user_id: UUID) -> None:
    rows = await queryable.fetch(
        """
        SELECT domain FROM sites WHERE owner_id = $1 UNION SELECT name FROM dns_zones WHERE owner_id = $1
        ORDER BY 1 LIMIT $2
        """,
        user_id,
        _NAMED + 1,
    )
    if rows:
        names = ", ".join(row["domain"] for row in rows[:_NAMED])
        raise _owns(names + (" and more" if len(rows) > _NAMED else ""))


def _owns(what: str) -> ServiceError:
    return conflict(f"This account owns {what}; it was not deleted.", hint="Delete that first, then the account.")
