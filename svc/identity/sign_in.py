"""Sign-in, sign-out and /me.

Invariants: whoever is unknown, has no
password or typed a wrong one gets the same answer at the same cost; only who proved the password is told of a
suspension.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.identity import sessions, sign_in_mail
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.identity.throttle import SignInAttempt
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.errors import forbidden, invalid, not_found, unauthenticated
from svc_actors.store import Target, Transaction, Via, audit

operations = Operations[IdentityServices]()


class LoginRequest(Request):
    email: Annotated[str, Field(max_length=254)]
    password: Annotated[str, Field(max_length=1024)]


class SignedIn(Model):
    id: UUID
    email: str
    name: str
    role: Role


class LoginResult(Model):
    """The session itself is in the cookie; it ends at `expires_at` at the latest."""

    user: SignedIn
    expires_at: datetime


class Impersonation(Model):
    """The support session that this cookie is: who is really there, why, and until when."""

    id: UUID
    operator: str
    reason: str
    started_at: datetime
    expires_at: datetime


class Me(Model):
    id: UUID
    email: str
    name: str
    role: Role
    phone: str
    company: str
    scopes: list[str]
    created_at: datetime
    last_sign_in_at: datetime | None
    impersonation: Impersonation | None = None


@operations.declare(
    "session.login",
    "Sign in with an email address and a password",
    Route.post("/auth/login"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    positional=("email",),
    target="user",
)
async def login(context: Context[IdentityServices], request: LoginRequest) -> LoginResult:
    database, passwords = context.services.database, context.services.passwords
    email = request.email.strip().lower()
    attempt = SignInAttempt(email, context.caller.address, context.browser)
    await attempt.admit(database)
    async with passwords.turn():
        # Asked again in turn: failures of those who were before this one count.
        await attempt.admit(database)
        row = await database.fetchrow(
            """
            SELECT id, email, name, role, password_hash, suspension_reason, last_sign_in_at FROM users WHERE email = $1
            """,
            email,
        )
        if not await passwords.verify(row["password_hash"] if row else None, request.password) or row is None:
            await attempt.failed(database)
            raise unauthenticated("The email address or the password is wrong.")
    if row["suspension_reason"] is not None:
        contact = (await read_settings(database)).support_contact
        raise forbidden(
            f"This account is suspended: {row['suspension_reason']}",
            hint=f"Write to {contact}." if contact else None,
            details={"suspension_reason": row["suspension_reason"]},
        )

    async def begin(tx: Transaction) -> LoginResult:
        recognised = await attempt.succeeded(tx)
        context.effects.know_browser = recognised.browser
        # A password that was changed, or a suspension, while the hash was computed counts.
        still = await tx.fetchval(
            """
            UPDATE users SET last_sign_in_at = now()
            WHERE id = $1 AND suspended_at IS NULL AND password_hash = $2 RETURNING true
            """,
            row["id"],
            row["password_hash"],
        )
        if not still:
            raise unauthenticated("The email address or the password is wrong.")
        address = context.caller.address or "not known"
        await sign_in_mail.tell(tx, context.services.outbox, row, recognised, address, context.user_agent)
        user = SignedIn(id=row["id"], email=row["email"], name=row["name"], role=Role(row["role"]))
        return await begin_session(context, tx, user, via=Via.SESSION)

    return await database.transact(begin)


@operations.declare(
    "session.logout",
    "End this browser session",
    Route.post("/auth/logout"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    in_support_session=True,
    target="user",
)
async def logout(context: Context[IdentityServices], request: Empty) -> None:
    principal = context.principal
    if principal.session_id is None:
        raise invalid("A token is not signed in or out.", hint="DELETE /tokens/{id} revokes it.")
    session_id = principal.session_id

    async def end(tx: Transaction) -> None:
        await sessions.end(tx, session_id)
        await audit.record(tx, context.caller, Target("user", principal.user_id, principal.email))

    await context.services.database.transact(end)
    context.effects.clear_session = True


@operations.declare(
    "user.me", "Who the caller is", Route.get("/me"), access=Access.SIGNED_IN, scope=Scope.READ, command=("me",)
)
async def me(context: Context[IdentityServices], request: Empty) -> Me:
    row = await context.services.database.fetchrow(
        """
        SELECT u.id, u.email, u.name, u.role, u.phone, u.company, u.created_at, u.last_sign_in_at,
               i.id AS impersonation_id, i.reason, i.started_at, i.expires_at
        FROM users AS u LEFT JOIN impersonations AS i ON i.id = $2
        WHERE u.id = $1
        """,
        context.principal.user_id,
        context.principal.impersonation_id,
    )
    if row is None and context.principal.local:
        raise not_found("Root of this server has no account: it needs none.")
    if row is None:
        raise unauthenticated("This person is no longer there.")
    impersonation = None
    if row["impersonation_id"] is not None:
        impersonation = Impersonation(
            id=row["impersonation_id"],
            operator=context.principal.impersonator_email or "",
            reason=row["reason"],
            started_at=row["started_at"],
            expires_at=row["expires_at"],
        )
    scopes = context.principal.scopes
    return Me(
        id=row["id"],
        email=row["email"],
        name=row["name"],
        role=Role(row["role"]),
        phone=row["phone"],
        company=row["company"],
        scopes=sorted(context.services.realm.scopes.names if scopes is None else scopes),
        created_at=row["created_at"],
        last_sign_in_at=row["last_sign_in_at"],
        impersonation=impersonation,
    )


async def begin_session(
    context: Context[IdentityServices], tx: Transaction, user: SignedIn, *, via: Via
) -> LoginResult:
    begun = await sessions.begin(
        tx,
        user.id,
        address=context.caller.address,
        user_agent=context.user_agent,
        replaces=context.principal.session_id,
    )
    caller = replace(context.caller, actor_id=user.id, actor=user.email, role=user.role.value, via=via, token_id=None)
    await audit.record(tx, caller, Target("user", user.id, user.email))
    context.effects.set_session = begun.cookie
    return LoginResult(user=user, expires_at=begun.expires_at)
