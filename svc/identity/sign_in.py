"""Sign-in, sign-out and /me.

Invariants: an unknown person, one without a password and a wrong password get the same answer at the same cost; that a
person is suspended, or needs a code, is shown only after the correct password; a person who has a second factor, or
needs one, gets no session without a code of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from svc.identity import notices, pending_sign_ins, person_records, second_factor_records, sessions
from svc.identity.person_records import Person
from svc.identity.second_factor import Code, Enrolment, required_of, start_enrolment
from svc.identity.second_factor_records import AcceptedCode
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.identity.throttle import CODES, SignInAttempt
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.store import Caller, Target, Transaction, Via, audit
from svc_common.errors import ServiceError, forbidden, invalid, not_found, unauthenticated

operations = Operations[IdentityServices]()

_ACCEPTED: Final = 202


class LoginRequest(Request):
    email: Annotated[str, Field(max_length=254), LINE]
    password: Annotated[str, Field(max_length=1024), LINE]


class SignedIn(Model):
    id: UUID
    email: str
    name: str
    role: Role


class LoginResult(Model):
    """The session itself is in the cookie; it ends at `expires_at` at the latest."""

    user: SignedIn
    expires_at: datetime


class CodeNeeded(Model):
    """The password was right, but a code is needed to sign in: POST /auth/code with `pending` and a code, before
    `expires_at`. With `enrolment` the person must set up a second factor first; then the code is the first one of it.
    """

    pending: str
    expires_at: datetime
    enrolment: Enrolment | None = None


class CodeRequest(Request):
    pending: Annotated[str, Field(min_length=1, max_length=200), LINE]
    code: Code


class SignedInByCode(LoginResult):
    """`recovery_codes` of a second factor that this sign-in has set up; they are shown only once."""

    recovery_codes: list[str] | None = None


class Impersonation(Model):
    """The support session that the caller's cookie belongs to: its operator, its reason and when it ends."""

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
    statuses=(_ACCEPTED,),
    target="user",
)
async def login(context: Context[IdentityServices], request: LoginRequest) -> LoginResult | CodeNeeded:
    database, passwords = context.services.database, context.services.passwords
    email = request.email.strip().lower()
    attempt = SignInAttempt(email, context.caller.address, context.browser)
    await attempt.admit(database)
    async with passwords.turn():
        # Checked again once a slot is free: requests that were ahead of this one may have failed meanwhile, and their
        # failures count.
        await attempt.admit(database)
        row = await database.fetchrow(
            """
            SELECT id, password_hash, suspension_reason FROM users WHERE email = $1
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

    async def proceed(tx: Transaction) -> LoginResult | CodeNeeded:
        # The person may have been suspended, or their password changed, while the hash was computed.
        still = await tx.fetchval(
            "SELECT true FROM users WHERE id = $1 AND suspended_at IS NULL AND password_hash = $2 FOR UPDATE",
            row["id"],
            row["password_hash"],
        )
        if not still:
            raise unauthenticated("The email address or the password is wrong.")
        person = await person_records.person(tx, row["id"])
        if person.second_factor or await required_of(tx, person.role):
            return await _ask_for_code(context, tx, person)
        return await _signed_in(context, tx, attempt, person)

    return await database.transact(proceed)


@operations.declare(
    "session.code",
    "Sign in with a code, after the password",
    Route.post("/auth/code"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    secret=True,
    target="user",
)
async def confirm_code(context: Context[IdentityServices], request: CodeRequest) -> SignedInByCode:
    services, pending = context.services, request.pending

    async def work(tx: Transaction) -> SignedInByCode | None:
        """Returns None for a wrong code instead of raising, so that the transaction commits the count of wrong
        codes."""
        user_id = await pending_sign_ins.owner(tx, pending)
        if user_id is None:
            raise _ended()
        person = await person_records.locked(tx, user_id)
        # Concurrent requests may have counted wrong codes, or used up this pending sign-in.
        if await pending_sign_ins.owner(tx, pending) is None:
            raise _ended()
        attempt = SignInAttempt(person.email, context.caller.address, context.browser, CODES)
        await attempt.admit(tx)
        codes, proof = None, None
        if person.second_factor:
            proof = await second_factor_records.use(tx, services.sealer, user_id, request.code)
        else:
            codes = await second_factor_records.confirm(tx, services.sealer, user_id, request.code)
        if proof is None and codes is None:
            await attempt.failed(tx)
            await pending_sign_ins.count_wrong_code(tx, pending)
            return None
        await pending_sign_ins.end(tx, pending)
        if (told := _worth_telling(codes, proof)) is not None:
            await notices.tell_of_second_factor(tx, services.outbox, person, told, context.caller.address)
        result = await _signed_in(context, tx, attempt, person)
        return SignedInByCode(**result.model_dump(), recovery_codes=codes)

    result = await services.database.transact(work)
    if result is None:
        raise unauthenticated(
            "This code is wrong, or was used before.", hint="Wait for the authenticator's next code, and use that."
        )
    return result


async def _ask_for_code(context: Context[IdentityServices], tx: Transaction, person: Person) -> CodeNeeded:
    enrolment = None
    if not person.second_factor:
        enrolment = await start_enrolment(context, tx, person.id, person.email)
    pending, until = await pending_sign_ins.create(tx, person.id)
    details = {"code": "asked for", "second_factor": "to be set up" if enrolment else "there"}
    await audit.record(tx, _as(context.caller, person, Via.SESSION), person.target, details)
    context.effects.status = _ACCEPTED
    return CodeNeeded(pending=pending, expires_at=until, enrolment=enrolment)


async def _signed_in(
    context: Context[IdentityServices], tx: Transaction, attempt: SignInAttempt, person: Person
) -> LoginResult:
    """Start the session of a person who has given all required proofs."""
    recognised = await attempt.succeeded(tx)
    context.effects.know_browser = recognised.browser
    await note_sign_in(tx, person.id)
    address = context.caller.address or "not known"
    await notices.tell_of_sign_in(tx, context.services.outbox, person, recognised, address, context.user_agent)
    user = SignedIn(id=person.id, email=person.email, name=person.name, role=person.role)
    return await start_session(context, tx, user, via=Via.SESSION)


def _worth_telling(codes: list[str] | None, proof: AcceptedCode | None) -> str | None:
    """The change to the second factor that a sign-in by code made, as text for the mail to the person; None if it made
    none."""
    if codes is not None:
        return notices.FACTOR_SET_UP
    if proof is not None and proof.recovery_codes_left is not None:
        return notices.code_used(proof.recovery_codes_left)
    return None


def _ended() -> ServiceError:
    return unauthenticated("This sign-in has ended.", hint="Start again with the password.")


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
        raise invalid("A token cannot sign in or out.", hint="DELETE /tokens/{id} revokes it.")
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
        raise unauthenticated("This person no longer exists.")
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


async def note_sign_in(tx: Transaction, user_id: UUID) -> None:
    await tx.execute("UPDATE users SET last_sign_in_at = now() WHERE id = $1", user_id)


async def start_session(
    context: Context[IdentityServices],
    tx: Transaction,
    user: SignedIn,
    *,
    via: Via,
    details: Mapping[str, Any] | None = None,
) -> LoginResult:
    session = await sessions.create(
        tx,
        user.id,
        address=context.caller.address,
        user_agent=context.user_agent,
        replaces=context.principal.session_id,
    )
    await audit.record(tx, _as(context.caller, user, via), Target("user", user.id, user.email), details)
    context.effects.set_session = session.cookie
    return LoginResult(user=user, expires_at=session.expires_at)


def _as(caller: Caller, user: SignedIn | Person, via: Via) -> Caller:
    """The caller for the audit, with the identity of the person who has just signed in."""
    return replace(caller, actor_id=user.id, actor=user.email, role=user.role.value, via=via, token_id=None)
