"""/admin/users: people as an administrator sees and changes them (specification, Administering people).

Invariants: a password is never logged, audited or shown; suspension, sign-out and a new password end every browser
session of the person at once, and only suspension stops their API tokens.
"""

from __future__ import annotations

from uuid import UUID

from svc.identity import password_links, person_records, sessions
from svc.identity.fields import Email, Line, Name, NewPassword, Phone, Reason, Text
from svc.identity.passwords import check_password
from svc.identity.person_records import PERSON_SELECT, USER_PIECES, Person, PersonStatus
from svc.identity.services import IdentityServices
from svc.identity.users import update_person
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import EVERYTHING, Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict

operations = Operations[IdentityServices]()


class PersonListRequest(PageRequest):
    role: Role | None = None
    status: PersonStatus | None = None


class PersonRequest(Request):
    id: UUID


class PersonUpdateRequest(Request):
    """Fields left out stay as they are."""

    id: UUID
    name: Name | None = None
    email: Email | None = None
    role: Role | None = None
    phone: Phone | None = None
    company: Line | None = None
    note: Text | None = None


class SuspendRequest(Request):
    """The person is shown `reason` at sign-in."""

    id: UUID
    reason: Reason


class PasswordRequest(Request):
    id: UUID
    password: NewPassword


class Restored(Person):
    """`tokens`: how many API tokens of theirs work again from now on; GET /tokens?user= lists them, and DELETE
    /tokens/{id} revokes one that should not."""

    tokens: int


class SignedOut(Model):
    """How many browser sessions were ended."""

    sessions: int


@operations.declare(
    "person.list",
    "All people, with every field",
    Route.get("/admin/users"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "email", "role", "status", "company", "id"),
)
async def list_people(context: Context[IdentityServices], request: PersonListRequest) -> Page[Person]:
    status = {
        None: EVERYTHING,
        PersonStatus.ACTIVE: Condition("u.suspended_at IS NULL"),
        PersonStatus.SUSPENDED: Condition("u.suspended_at IS NOT NULL"),
    }[request.status]
    rows, total = await paginate(
        context.services.database,
        select=PERSON_SELECT,
        source="users AS u",
        where=[
            status,
            equals("u.role", request.role),
            contains(request.q, "u.email", "u.name", "u.company", "u.phone", pieces=USER_PIECES),
        ],
        sortable={"email": "u.email", "name": "u.name", "created_at": "u.created_at", "company": "u.company"},
        default_sort="email",
        request=request,
        tie="u.id",
    )
    return Page[Person].of([Person(**dict(row)) for row in rows], total, request)


@operations.declare(
    "person.update",
    "Change the details of a person",
    Route.patch("/admin/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def update(context: Context[IdentityServices], request: PersonUpdateRequest) -> Person:

    async def work(tx: Transaction) -> Person:
        return await update_person(context, tx, request.id, request)

    return await context.services.database.transact(work)


@operations.declare(
    "person.suspend",
    "Suspend a person: sessions end, tokens are refused",
    Route.post("/admin/users/{id}/suspend"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def suspend(context: Context[IdentityServices], request: SuspendRequest) -> Person:

    async def work(tx: Transaction) -> Person:
        target = await person_records.locked(tx, request.id)
        if target.id == context.principal.user_id:
            raise conflict("You cannot suspend yourself.")
        await person_records.keep_an_administrator(tx, context, target)
        suspended = await person_records.suspend(tx, target.id, request.reason)
        await audit.record(tx, context.caller, target.target, {"reason": request.reason})
        return suspended

    return await context.services.database.transact(work)


@operations.declare(
    "person.restore",
    "Lift a suspension; the person's API tokens work again",
    Route.post("/admin/users/{id}/restore"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def restore(context: Context[IdentityServices], request: PersonRequest) -> Restored:
    async with context.services.database.transaction() as tx:
        target = await person_records.locked(tx, request.id)
        restored = await person_records.change(tx, target.id, {"suspended_at": None, "suspension_reason": None})
        tokens = await tx.fetchval(
            "SELECT count(*) FROM api_tokens WHERE user_id = $1 AND (expires_at IS NULL OR expires_at > now())",
            target.id,
        )
        await audit.record(tx, context.caller, restored.target, {"tokens": tokens})
    return Restored(**restored.model_dump(), tokens=tokens)


@operations.declare(
    "person.sign_out",
    "End every browser session of a person",
    Route.post("/admin/users/{id}/sign-out"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def sign_out(context: Context[IdentityServices], request: PersonRequest) -> SignedOut:
    async with context.services.database.transaction() as tx:
        target = await person_records.locked(tx, request.id)
        ended = await sessions.end_all(tx, target.id)
        await audit.record(tx, context.caller, target.target, {"sessions": ended})
    return SignedOut(sessions=ended)


@operations.declare(
    "person.set_password",
    "Set a person's password; every session of theirs ends",
    Route.post("/admin/users/{id}/password"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def set_password(context: Context[IdentityServices], request: PasswordRequest) -> None:
    target = await person_records.person(context.services.database, request.id)
    check_password(request.password, [target.email.partition("@")[0]])
    password_hash = await context.services.passwords.hash(request.password)
    async with context.services.database.transaction() as tx:
        await person_records.change(tx, target.id, {"password_hash": password_hash})
        await password_links.revoke_links(tx, target.id)
        ended = await sessions.end_all(tx, target.id)
        await audit.record(tx, context.caller, target.target, {"sessions": ended})
    if target.id == context.principal.user_id:
        context.effects.clear_session = True
