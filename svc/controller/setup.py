"""The first administrator of a controller, and the project that they start with.

Invariant: the first administrator is created once, with the token that was issued for it.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.services import Controller
from svc.identity.fields import Email, Name, NewPassword
from svc.identity.passwords import check_password
from svc.identity.settings import read_settings
from svc.identity.sign_in import LoginResult, SignedIn, start_session
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.secrets import SETUP_TOKEN_PREFIX, fingerprint, new_secret
from svc_actors.store import Database, Queryable, Transaction, Via
from svc_common.errors import conflict, forbidden

operations = Operations[Controller]()

DEFAULT_PROJECT = "default"
_SETUP_LOCK = 0x5356_5355


class SetupStatus(Model):
    """`required`: there is no administrator yet. `sends_mail`: the service can mail links to reset a forgotten
    password."""

    required: bool
    sends_mail: bool
    service_name: str


class SetupRequest(Request):
    token: Annotated[str, Field(min_length=1, max_length=200)]
    email: Email
    name: Name
    password: NewPassword


async def ensure_setup_token(database: Database) -> str | None:
    """A new token for POST /setup, which revokes any earlier one; None once there is an administrator."""
    async with database.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _SETUP_LOCK)
        if await _administrator_exists(tx):
            return None
        token = new_secret(SETUP_TOKEN_PREFIX)
        await tx.execute("DELETE FROM setup_tokens WHERE used_at IS NULL")
        await tx.execute("INSERT INTO setup_tokens (token_hash) VALUES ($1)", fingerprint(token))
    return token


@operations.declare(
    "setup.status",
    "Whether the first administrator has yet to be created",
    Route.get("/setup/status"),
    access=Access.PUBLIC,
    scope=Scope.READ,
)
async def setup_status(context: Context[Controller], request: Empty) -> SetupStatus:
    database = context.services.database
    settings = await read_settings(database)
    return SetupStatus(
        required=not await _administrator_exists(database),
        sends_mail=context.services.outbox.configured,
        service_name=settings.service_name,
    )


@operations.declare(
    "setup.run",
    "Create the first administrator, with the token that the service printed",
    Route.post("/setup"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    positional=("token",),
    target="user",
)
async def setup(context: Context[Controller], request: SetupRequest) -> LoginResult:
    if await _administrator_exists(context.services.database):
        raise conflict("This service is already set up.", hint="Sign in.")
    check_password(request.password, [request.email.partition("@")[0]])
    password_hash = await context.services.passwords.hash(request.password)

    async def work(tx: Transaction) -> LoginResult:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _SETUP_LOCK)
        if await _administrator_exists(tx):
            raise conflict("This service is already set up.", hint="Sign in.")
        if not await tx.fetchval(
            "UPDATE setup_tokens SET used_at = now() WHERE token_hash = $1 AND used_at IS NULL RETURNING true",
            fingerprint(request.token),
        ):
            raise forbidden(
                "This is not the setup token.",
                hint="The service prints it at each start; a restart creates a new one.",
            )
        user_id: UUID = await tx.fetchval(
            """
            INSERT INTO users (email, name, role, password_hash, last_sign_in_at)
            VALUES ($1, $2, 'administrator', $3, now()) RETURNING id
            """,
            request.email,
            request.name,
            password_hash,
        )
        await tx.execute(
            """
            WITH found AS (SELECT id FROM projects WHERE name = $1 ORDER BY created_at, id LIMIT 1),
                 made AS (INSERT INTO projects (name) SELECT $1 WHERE NOT EXISTS (SELECT FROM found) RETURNING id)
            INSERT INTO project_members (project_id, user_id)
            SELECT id, $2::uuid FROM found UNION ALL SELECT id, $2::uuid FROM made
            """,
            DEFAULT_PROJECT,
            user_id,
        )
        user = SignedIn(id=user_id, email=request.email, name=request.name, role=Role.ADMINISTRATOR)
        return await start_session(context, tx, user, via=Via.SETUP)

    return await context.services.database.transact(work)


async def _administrator_exists(queryable: Queryable) -> bool:
    return bool(await queryable.fetchval("SELECT EXISTS (SELECT FROM users WHERE role = 'administrator')"))
