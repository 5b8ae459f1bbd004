"""DELETE /users/{id}: an account is suspended at once and removed by a job. One that owns something stays.

Invariant: nothing of somebody's is destroyed because their account goes: who deletes it has deleted that, or given it
to somebody else, and knows what it was.
"""

from __future__ import annotations

from typing import Final
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
from svc_actors.errors import ServiceError, conflict
from svc_actors.panel.jobs import JobClass, JobRun, NewJob, enqueue
from svc_actors.store import Database, ForeignKeyViolationError, Queryable, Transaction, audit

operations = Operations[Panel]()

KIND: Final = "user.delete"
_REASON: Final = "This account is being deleted."
_NAMED: Final = 5


@operations.declare(
    "user.delete",
    "Delete an account that owns nothing any more",
    Route.delete("/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete(context: Context[Panel], request: PersonRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        person = await person_records.locked(tx, request.id)
        if person.id == context.principal.user_id:
            raise conflict("Nobody deletes their own account.", hint="Another administrator can.")
        await person_records.keep_an_administrator(tx, context, person)
        await _refuse_owner(tx, person.id)
        await person_records.suspend(tx, person.id, _REASON)
        job = await enqueue(
            tx,
            NewJob(
                kind=KIND,
                title=f"Delete the account {person.email}",
                job_class=JobClass.SYSTEM,
                steps=("remove_account",),
                parameters={"user_id": str(person.id)},
            ),
        )
        await audit.record(tx, context.caller, person.target, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


class AccountDeletion:
    """The work of the job. Done again it finds nobody, and that is well."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def remove_account(self, run: JobRun) -> None:
        user_id = UUID(run.parameters["user_id"])

        async def work(tx: Transaction) -> None:
            await _refuse_owner(tx, user_id)
            await remove_person(tx, user_id)

        try:
            await self._database.transact(work)
        except ForeignKeyViolationError:
            raise _owns("something") from None


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
