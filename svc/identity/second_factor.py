"""Operations on the caller's own second factor (set up, show, disable), and the administrators' operation that disables
it for a person who has lost their authenticator.

Invariants: every change needs the password, and a code of the existing factor; failures of both are throttled as at the
sign-in. The secret and the recovery codes are shown once and never stored in the clear. Every change is mailed to the
person. API tokens need no code, as they need no password.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.identity import notices, person_records, second_factor_records, sessions, totp
from svc.identity.fields import Reason
from svc.identity.person_records import Person
from svc.identity.second_factor_records import AcceptedCode
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.identity.throttle import CODES, SignInAttempt
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import ServiceError, conflict, forbidden

operations = Operations[IdentityServices]()

Code = Annotated[str, Field(min_length=1, max_length=40, description="Of the authenticator, or a recovery code."), LINE]
_Password = Annotated[str, Field(max_length=1024, description="One's own."), LINE]


class SecondFactor(Model):
    """`required`: people with this role cannot sign in without one. `recovery_codes`: how many are unused."""

    enabled: bool
    required: bool
    confirmed_at: datetime | None
    recovery_codes: int


class Enrolment(Model):
    """The secret for an authenticator, shown only once: as a link (`url`), as a picture (`qr_code`, a data URI of an
    SVG) and to be typed (`secret`). The second factor is in force once a code of it was confirmed."""

    secret: str
    url: str
    qr_code: str


class RecoveryCodes(Model):
    """Each replaces a code of the authenticator once, for somebody who has lost it. They are shown only once."""

    recovery_codes: list[str]


class EnrolRequest(Request):
    password: _Password


class ConfirmRequest(Request):
    code: Code


class ProofRequest(Request):
    password: _Password
    code: Code


class PersonSecondFactorRequest(Request):
    """`reason` is kept in the audit: how the administrator verified who asked for this."""

    id: UUID
    reason: Reason


@operations.declare(
    "second_factor.show",
    "Whether the caller signs in with a second factor",
    Route.get("/me/second-factor"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show(context: Context[IdentityServices], request: Empty) -> SecondFactor:
    database = context.services.database
    state = await second_factor_records.state(database, context.principal.user_id)
    return SecondFactor(
        enabled=state.confirmed_at is not None,
        required=await required_of(database, context.principal.role),
        confirmed_at=state.confirmed_at,
        recovery_codes=state.recovery_codes,
    )


@operations.declare(
    "second_factor.enrol",
    "Start to set up a second factor; its secret is shown once",
    Route.post("/me/second-factor"),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
    secret=True,
    target="user",
)
async def enrol(context: Context[IdentityServices], request: EnrolRequest) -> Enrolment:
    me = await _prove_password(context, request.password)

    async def work(tx: Transaction) -> Enrolment:
        person = await person_records.locked(tx, me)
        enrolment = await start_enrolment(context, tx, person.id, person.email)
        await audit.record(tx, context.caller, person.target)
        return enrolment

    return await context.services.database.transact(work)


@operations.declare(
    "second_factor.confirm",
    "Confirm the second factor with a code of it; its recovery codes are shown once",
    Route.post("/me/second-factor/confirm"),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
    positional=("code",),
    secret=True,
    target="user",
)
async def confirm(context: Context[IdentityServices], request: ConfirmRequest) -> RecoveryCodes:
    services = context.services

    async def work(tx: Transaction) -> RecoveryCodes | None:
        person = await person_records.locked(tx, _own_id(context))
        attempt = SignInAttempt(person.email, context.caller.address, context.browser, CODES)
        await attempt.admit(tx)
        codes = await second_factor_records.confirm(tx, services.sealer, person.id, request.code)
        if codes is None:
            await attempt.failed(tx)
            return None
        await notices.tell_of_second_factor(tx, services.outbox, person, notices.FACTOR_SET_UP, context.caller.address)
        await audit.record(tx, context.caller, person.target)
        return RecoveryCodes(recovery_codes=codes)

    confirmed = await services.database.transact(work)
    if confirmed is None:
        raise conflict(
            "This code does not match a second factor that is being set up; nothing was enabled.",
            hint="Enter the code that the authenticator shows now, and check that its clock is right.",
        )
    return confirmed


@operations.declare(
    "second_factor.renew_codes",
    "Replace the recovery codes with ten new ones, shown once",
    Route.post("/me/second-factor/recovery-codes"),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
    secret=True,
    target="user",
)
async def renew_codes(context: Context[IdentityServices], request: ProofRequest) -> RecoveryCodes:
    me = await _prove_password(context, request.password)
    services = context.services

    async def work(tx: Transaction) -> RecoveryCodes | None:
        person = await person_records.locked(tx, me)
        if await _proof_by(context, tx, person, request.code) is None:
            return None
        codes = await second_factor_records.new_recovery_codes(tx, services.sealer, person.id)
        await notices.tell_of_second_factor(tx, services.outbox, person, notices.CODES_RENEWED, context.caller.address)
        await audit.record(tx, context.caller, person.target)
        return RecoveryCodes(recovery_codes=codes)

    renewed = await services.database.transact(work)
    if renewed is None:
        raise _wrong_code()
    return renewed


@operations.declare(
    "second_factor.disable",
    "Disable the caller's second factor",
    Route.post("/me/second-factor/disable"),
    access=Access.SIGNED_IN,
    scope=Scope.ADMIN,
    target="user",
)
async def disable(context: Context[IdentityServices], request: ProofRequest) -> None:
    me = await _prove_password(context, request.password)
    services = context.services

    async def work(tx: Transaction) -> bool:
        person = await person_records.locked(tx, me)
        if await required_of(tx, person.role):
            raise conflict(
                "Administrators must have a second factor here; it was not disabled.",
                hint="The settings of the service require it.",
            )
        if await _proof_by(context, tx, person, request.code) is None:
            return False
        await second_factor_records.remove(tx, person.id)
        await notices.tell_of_second_factor(
            tx, services.outbox, person, notices.FACTOR_DISABLED, context.caller.address
        )
        await audit.record(tx, context.caller, person.target)
        return True

    if not await services.database.transact(work):
        raise _wrong_code()


@operations.declare(
    "person.disable_second_factor",
    "Disable the second factor of somebody who has lost it; every session of theirs ends",
    Route.post("/admin/users/{id}/second-factor/disable"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def disable_for(context: Context[IdentityServices], request: PersonSecondFactorRequest) -> Person:

    async def work(tx: Transaction) -> Person:
        person = await person_records.locked(tx, request.id)
        if person.id == context.principal.user_id:
            raise conflict(
                "Your own second factor is disabled with a code.",
                hint="`svc second-factor disable`, or another administrator.",
            )
        if not await second_factor_records.remove(tx, person.id):
            raise conflict("This person has no second factor.")
        await sessions.end_all(tx, person.id)
        # The mail names no address: it would be the operator's, which is not shown to the person.
        await notices.tell_of_second_factor(
            tx, context.services.outbox, person, notices.FACTOR_DISABLED_BY_ADMINISTRATOR, None
        )
        await audit.record(tx, context.caller, person.target, {"reason": request.reason})
        return await person_records.person(tx, person.id)

    return await context.services.database.transact(work)


async def required_of(queryable: Queryable, role: Role | None) -> bool:
    """Whether people with this role must sign in with a second factor."""
    return role is Role.ADMINISTRATOR and (await read_settings(queryable)).require_second_factor


async def start_enrolment(context: Context[IdentityServices], tx: Transaction, user_id: UUID, email: str) -> Enrolment:
    """Start to set up a second factor for `email`, within `tx`. Raises `conflict` if there is a confirmed one."""
    secret = await second_factor_records.enrol(tx, context.services.sealer, user_id)
    issuer = (await read_settings(tx)).service_name
    url = totp.otpauth_url(secret, issuer, email)
    return Enrolment(secret=totp.in_letters(secret), url=url, qr_code=totp.qr_code(url))


async def _proof_by(
    context: Context[IdentityServices], tx: Transaction, person: Person, code: str
) -> AcceptedCode | None:
    """Use up a code, subject to the throttle; None if the code is wrong. The caller holds the lock of the person's
    row."""
    attempt = SignInAttempt(person.email, context.caller.address, context.browser, CODES)
    await attempt.admit(tx)
    proof = await second_factor_records.use(tx, context.services.sealer, person.id, code)
    if proof is None:
        await attempt.failed(tx)
    return proof


async def _prove_password(context: Context[IdentityServices], password: str) -> UUID:
    """Verify the caller's password and return the caller's id. A session alone is not enough here, since the browser
    may be unattended."""
    database, passwords = context.services.database, context.services.passwords
    row = await database.fetchone("SELECT id, email, password_hash FROM users WHERE id = $1", _own_id(context))
    attempt = SignInAttempt(row["email"], context.caller.address, context.browser)
    async with passwords.turn():
        await attempt.admit(database)
        if not await passwords.verify(row["password_hash"], password):
            await attempt.failed(database)
            raise forbidden("The password is wrong.")
    user_id: UUID = row["id"]
    return user_id


def _own_id(context: Context[IdentityServices]) -> UUID:
    if context.principal.user_id is None:
        raise forbidden("Only a person has a second factor.")
    return context.principal.user_id


def _wrong_code() -> ServiceError:
    return forbidden(
        "This code is wrong, or was used before.", hint="Wait for the authenticator's next code, and use that."
    )
