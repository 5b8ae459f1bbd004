"""Setting a password by a link that was mailed: an invitation, or a reset for somebody who forgot theirs.

Invariants:
- a link works once, for a limited time, and only while the address that it was sent to is still the person's and they
  are not suspended; only its SHA-256 is stored. Setting a password, in whatever way, ends all links of the person;
- a request for a link reveals nothing about who has an account, neither by its answer nor by its time: the same two
  rows are written for every requested address, and a background loop looks up the account later;
- setting a password by a link ends every session of that person.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Final
from uuid import UUID

import structlog
import trio
from pydantic import Field

from svc.identity import mail_texts, person_records, sessions
from svc.identity.fields import NewPassword
from svc.identity.passwords import check_password
from svc.identity.person_records import Person, PersonStatus
from svc.identity.services import IdentityServices
from svc.identity.settings import read_settings
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.admission import source_of
from svc_actors.mail import MailKind, NewMail, Outbox
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, Queryable, Target, Transaction, audit, service_itself
from svc_common.errors import ErrorCode, ServiceError, conflict, forbidden, rate_limited, unavailable

operations = Operations[IdentityServices]()

INVITATION_LASTS: Final = timedelta(days=3)
"""Long enough for a weekend."""
RESET_LASTS: Final = timedelta(hours=1)
MAILS_AN_HOUR: Final = 3
"""The most mails per account: its owner has a valid link by then, and requests of others must not fill the mailbox."""
ASKS_AN_HOUR: Final = 10
"""The most requests per source, which is an IPv4 address or an IPv6 /64."""
MOST_WAITING: Final = 1_000
CHANNEL: Final = "password-asks"
_LOOK_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)


class ForgotPasswordRequest(Request):
    email: Annotated[str, Field(max_length=254), LINE]


class SetPasswordRequest(Request):
    """`token` is what the link carries behind `token=`."""

    token: Annotated[str, Field(min_length=1, max_length=200), LINE]
    password: NewPassword


class InviteRequest(Request):
    id: UUID


class Invitation(Model):
    """Where it was sent, and until when its link works."""

    email: str
    expires_at: datetime


@operations.declare(
    "user.invite",
    "Mail a person a link to choose their first password",
    Route.post("/users/{id}/invite"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def invite(context: Context[IdentityServices], request: InviteRequest) -> Invitation:

    async def work(tx: Transaction) -> Invitation:
        person = await person_records.locked(tx, request.id)
        if person.status is PersonStatus.SUSPENDED:
            raise conflict("This person is suspended.", hint="Restore them first.")
        if await tx.fetchval("SELECT password_hash IS NOT NULL FROM users WHERE id = $1", person.id):
            raise conflict(
                "This person has a password.", hint="If it was forgotten, they can request a link at the sign-in."
            )
        sent = await send_invitation(tx, context.services.outbox, person)
        await audit.record(tx, context.caller, person.target)
        return sent

    return await context.services.database.transact(work)


async def send_invitation(tx: Transaction, outbox: Outbox, person: Person) -> Invitation:
    """Queue a mail with a link, which is sent once `tx` has committed. The person's earlier links end. Raises what
    `Outbox.write` raises."""
    token, until = await first_password_link(tx, person)
    settings = await read_settings(tx)
    url = mail_texts.link(outbox.base_url, token)
    subject, text = mail_texts.invitation(settings, person.name, person.email, url, until)
    await outbox.write(
        tx,
        NewMail(
            kind=MailKind.INVITATION,
            recipient=person.email,
            subject=subject,
            text=text,
            lasts=INVITATION_LASTS,
            perishable=True,
            user_id=person.id,
        ),
    )
    return Invitation(email=person.email, expires_at=until)


async def first_password_link(tx: Transaction, person: Person) -> tuple[str, datetime]:
    """Create an invitation's link; returns its token and its expiry. The person's earlier links end."""
    await revoke_links(tx, person.id)
    return await _new_link(tx, person.id, person.email, INVITATION_LASTS)


@operations.declare(
    "password.forgot",
    "Request a link to choose a new password; the answer is the same for every address",
    Route.post("/auth/forgot-password"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    positional=("email",),
    target="user",
)
async def forgot(context: Context[IdentityServices], request: ForgotPasswordRequest) -> None:
    email = request.email.strip().lower()
    source = source_of(context.caller.address or "")

    async def work(tx: Transaction) -> None:
        await context.services.outbox.admit(tx)
        await _admit(tx, source)
        await tx.execute(
            "INSERT INTO password_asks (email, account, place) VALUES ($1, $2, $3)",
            email.replace("\0", ""),
            hashlib.sha256(email.encode()).hexdigest(),
            source,
        )
        # The audit does not get the address, since the user may have typed a password in its place.
        await audit.record(tx, context.caller, Target("user", None, None))
        tx.announce(CHANNEL)

    await context.services.database.transact(work)


@operations.declare(
    "password.set",
    "Choose a password with the token of a link that was mailed; every session ends",
    Route.post("/auth/set-password"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    positional=("token",),
    target="user",
)
async def set_password(context: Context[IdentityServices], request: SetPasswordRequest) -> None:
    database, token_hash = context.services.database, fingerprint(request.token)
    # The link is checked before the password's hash is computed, which is expensive.
    user_id = await _owner(database, token_hash)
    if user_id is None:
        raise _no_such_link()
    person = await person_records.person(database, user_id)
    check_password(request.password, [person.email.partition("@")[0]])
    password_hash = await context.services.passwords.hash(request.password)

    async def work(tx: Transaction) -> None:
        target = await person_records.locked(tx, user_id)
        if await _owner(tx, token_hash) != user_id:
            raise _no_such_link()
        await person_records.change(tx, user_id, {"password_hash": password_hash})
        await revoke_links(tx, user_id)
        ended = await sessions.end_all(tx, user_id)
        caller = replace(context.caller, actor_id=user_id, actor=target.email, role=target.role.value, token_id=None)
        await audit.record(tx, caller, target.target, {"sessions": ended})

    await database.transact(work)
    if context.principal.user_id == user_id:
        context.effects.clear_session = True


class ResetRequests:
    """The loop that answers requests for links: it looks up the account of the address and mails the link."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox
        self._woken = trio.Event()

    async def run(self) -> None:
        """Answer requests until cancelled. Raises the database's errors; a new call continues where this one ended."""
        with self._database.announcements.listener(CHANNEL, lambda _: self._woken.set()):
            while True:
                self._woken = trio.Event()
                await self.round()
                with trio.move_on_after(_LOOK_SECONDS):
                    await self._woken.wait()

    async def round(self) -> None:
        """Answer all waiting requests."""
        while await self._database.transact(self._answer_one):
            pass

    async def _answer_one(self, tx: Transaction) -> bool:
        """Answer the oldest waiting request; False if there is none."""
        ask = await tx.fetchrow(
            """
            SELECT id, email, account FROM password_asks WHERE email IS NOT NULL ORDER BY id LIMIT 1
            FOR UPDATE SKIP LOCKED
            """
        )
        if ask is None:
            return False
        await tx.execute("UPDATE password_asks SET email = NULL WHERE id = $1", ask["id"])
        earlier = await tx.fetchval(
            """
            SELECT count(*) FROM password_asks
            WHERE account = $1 AND id < $2 AND asked_at > now() - interval '1 hour'
            """,
            ask["account"],
            ask["id"],
        )
        user_id = await tx.fetchval("SELECT id FROM users WHERE email = $1 AND suspended_at IS NULL", ask["email"])
        if user_id is not None and earlier < MAILS_AN_HOUR:
            await self._send(tx, await person_records.person(tx, user_id))
        return True

    async def _send(self, tx: Transaction, person: Person) -> None:
        settings = await read_settings(tx)
        token, until = await _new_link(tx, person.id, person.email, RESET_LASTS)
        subject, text = mail_texts.password_reset(
            settings, person.name, mail_texts.link(self._outbox.base_url, token), until
        )
        mail = NewMail(
            kind=MailKind.PASSWORD_RESET,
            recipient=person.email,
            subject=subject,
            text=text,
            lasts=RESET_LASTS,
            perishable=True,
            user_id=person.id,
        )
        try:
            await self._outbox.write(tx, mail)
        except ServiceError as error:
            if error.code is not ErrorCode.INVALID:
                raise
            # The stored address is invalid, so no mail can ever be sent there.
            log.warning("password.link_not_sent", user_id=str(person.id), error=error.message)
            await revoke_links(tx, person.id)
            return
        await audit.record(tx, service_itself("password.forgot"), person.target)


async def revoke_links(tx: Transaction, user_id: UUID) -> None:
    """End every link of a person."""
    await tx.execute("DELETE FROM password_links WHERE user_id = $1", user_id)


async def revoke_everybodys_links(tx: Transaction) -> None:
    await tx.execute("DELETE FROM password_links")
    await tx.execute("DELETE FROM password_asks")


async def forget_old_links(database: Database) -> None:
    """Remove expired links, and requests that are too old to count for the limits, answered or not: nobody expects a
    link from such a request any longer. The composer runs this periodically."""
    await database.execute("DELETE FROM password_links WHERE expires_at < now()")
    await database.execute("DELETE FROM password_asks WHERE asked_at < now() - interval '1 hour'")


async def _new_link(tx: Transaction, user_id: UUID, email: str, lasts: timedelta) -> tuple[str, datetime]:
    token = new_secret()
    until: datetime = await tx.fetchval(
        """
        INSERT INTO password_links (token_hash, user_id, email, expires_at)
        VALUES ($1, $2, $3, now() + $4::interval) RETURNING expires_at
        """,
        fingerprint(token),
        user_id,
        email,
        lasts,
    )
    return token, until


async def _owner(queryable: Queryable, token_hash: bytes) -> UUID | None:
    """The person whose password this link may set now."""
    user_id: UUID | None = await queryable.fetchval(
        """
        SELECT u.id FROM password_links AS l JOIN users AS u ON u.id = l.user_id AND u.email = l.email
        WHERE l.token_hash = $1 AND l.expires_at > now() AND u.suspended_at IS NULL
        """,
        token_hash,
    )
    return user_id


async def _admit(tx: Transaction, source: str) -> None:
    """Limit the requests of one source, and all requests together, whatever account they name. Raises `rate_limited`
    and `unavailable`."""
    row = await tx.fetchone(
        """
        SELECT count(*) AS asked, ceil(extract(epoch FROM min(asked_at) + interval '1 hour' - now()))::integer AS left
        FROM password_asks WHERE place = $1 AND asked_at > now() - interval '1 hour'
        """,
        source,
    )
    if row["asked"] >= ASKS_AN_HOUR:
        minutes = max(1, row["left"] // 60)
        raise rate_limited(
            "Too many links were requested.",
            hint=f"Try again in {minutes} minutes." if minutes > 1 else "Try again in a minute.",
            details={"retry_after": max(1, row["left"])},
        )
    waiting = await tx.fetchval(
        "SELECT count(*) FROM (SELECT FROM password_asks WHERE email IS NOT NULL LIMIT $1) AS waiting", MOST_WAITING
    )
    if waiting >= MOST_WAITING:
        raise unavailable("Too many links are requested at once.", details={"retry_after": 60})


def _no_such_link() -> ServiceError:
    return forbidden(
        "This link no longer works: it was used, or has expired.", hint="Request a new one at the sign-in."
    )
