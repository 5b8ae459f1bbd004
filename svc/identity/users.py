"""/users: names to choose project members from. It shows no phone and no suspension reason; /admin/users shows the
whole person."""

from __future__ import annotations

from uuid import UUID

from svc.identity import password_links, person_records, second_factor_records
from svc.identity.fields import Email, Line, Name, NewPassword, Phone
from svc.identity.passwords import check_password
from svc.identity.person_records import USER_PIECES
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.realm import Realm
from svc.registry.scopes import Scope
from svc_actors.store import Transaction, audit
from svc_common.errors import wrong_field

operations = Operations[IdentityServices]()


class User(Model):
    id: UUID
    email: str
    name: str
    role: Role


class UserListRequest(PageRequest):
    role: Role | None = None


class UserCreateRequest(Request):
    """`invite`: the person is mailed a link to choose a password. Without it and without `password` they cannot sign in
    until an administrator sets one."""

    email: Email
    name: Name
    role: Role = Role.CUSTOMER
    password: NewPassword | None = None
    phone: Phone = ""
    company: Line = ""
    invite: bool = False


class UserUpdateRequest(Request):
    """Fields left out stay as they are."""

    id: UUID
    email: Email | None = None
    name: Name | None = None
    role: Role | None = None


@operations.declare(
    "user.list",
    "People to pick from, by name",
    Route.get("/users"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "email", "role", "id"),
)
async def list_users(context: Context[IdentityServices], request: UserListRequest) -> Page[User]:
    rows, total = await paginate(
        context.services.database,
        select="SELECT id, email, name, role FROM users",
        source="users",
        where=[equals("role", request.role), contains(request.q, "email", "name", pieces=USER_PIECES)],
        sortable={"email": "email", "name": "name", "created_at": "created_at"},
        default_sort="email",
        request=request,
    )
    return Page[User].of([User(**dict(row)) for row in rows], total, request)


@operations.declare(
    "user.create",
    "Add a person",
    Route.post("/users", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("email",),
)
async def create_user(context: Context[IdentityServices], request: UserCreateRequest) -> User:
    password_hash = None
    check_role(context.services.realm, request.role)
    if request.invite and request.password is not None:
        raise wrong_field("invite", "cannot be combined with a password: an invited person chooses their own")
    if request.password is not None:
        check_password(request.password, [request.email.partition("@")[0]])
        password_hash = await context.services.passwords.hash(request.password)
    async with context.services.database.transaction() as tx:
        user_id = await person_records.add(
            tx,
            email=request.email,
            name=request.name,
            role=request.role,
            password_hash=password_hash,
            phone=request.phone,
            company=request.company,
        )
        await context.services.person_added(tx, user_id, request.email, request.role)
        made = await person_records.person(tx, user_id)
        if request.invite:
            await password_links.send_invitation(tx, context.services.outbox, made)
        await audit.record(tx, context.caller, made.target, {"role": made.role.value, "invited": request.invite})
    return _user(made)


@operations.declare(
    "user.update",
    "Change a person's name, email address or role",
    Route.patch("/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update_user(context: Context[IdentityServices], request: UserUpdateRequest) -> User:

    async def work(tx: Transaction) -> User:
        return _user(await update_person(context, tx, request.id, request))

    return await context.services.database.transact(work)


async def update_person(
    context: Context[IdentityServices], tx: Transaction, user_id: UUID, request: Request
) -> person_records.Person:
    """Apply the fields that `request` carries besides `id`, and record which they were."""
    changes = request.model_dump(exclude={"id"}, exclude_unset=True, exclude_none=True)
    if "role" in changes:
        check_role(context.services.realm, changes["role"])
    target = await person_records.locked(tx, user_id)
    if "role" in changes and changes["role"] is not Role.ADMINISTRATOR:
        await person_records.keep_an_administrator(tx, context, target)
    changed = await person_records.change(tx, user_id, changes)
    if changes.get("role") is Role.ADMINISTRATOR and (await read_settings(tx)).require_second_factor:
        await second_factor_records.end_sessions_without(tx)
    await audit.record(tx, context.caller, changed.target, {"changed": sorted(changes)})
    return changed


def check_role(realm: Realm, role: Role) -> None:
    """Raise `invalid` for a role that this service does not have, and for members: those are invited by the customer
    whom they work for."""
    given = realm.roles - {Role.MEMBER}
    if role not in given:
        known = ", ".join(each.value for each in Role if each in given)
        raise wrong_field("role", f"must be one of {known}")


def _user(whole: person_records.Person) -> User:
    return User(id=whole.id, email=whole.email, name=whole.name, role=whole.role)
