"""Single sign-on: a link that signs a browser in as a customer, for a billing system that has authenticated them.

Invariants: a link works once, for some minutes, and only for a customer or a member who is not suspended; its creator
is recorded with the session that it starts; only its SHA-256 is stored. No second factor is required: a caller who may
create links may also set the customer's password, and the billing system has authenticated the customer.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc.identity import person_records
from svc.identity.person_records import Person, PersonStatus
from svc.identity.sign_in import LoginResult
from svc.identity.sign_in_links import LinkToken, SignInLink, no_such_link, start_linked_session
from svc.panel.accounts.billing import AccountRequest, locked_customer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict, not_found

operations = Operations[Panel]()

LIFETIME: Final = timedelta(minutes=5)
_LET_IN: Final = frozenset({Role.CUSTOMER, Role.MEMBER})


class SignInLinkRequest(AccountRequest):
    """The link signs in the customer, or a `member` of the account, whose id `member.list` shows."""

    member: UUID | None = None


class LinkSignInRequest(Request):
    """`token` is what the link carries behind `token=`."""

    token: LinkToken


@operations.declare(
    "account.sign_in_link",
    "Create a link that signs a browser in as a customer or one of their members, once, within five minutes",
    Route.post("/accounts/{id}/sign-in-link", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    secret=True,
    target="user",
)
async def make_link(context: Context[Panel], request: SignInLinkRequest) -> SignInLink:
    token = new_secret()

    async def work(tx: Transaction) -> datetime:
        person = await _who(tx, request)
        if person.status is PersonStatus.SUSPENDED:
            raise conflict(f"The account {person.email} is suspended.", hint="Unsuspend it first.")
        await tx.execute("DELETE FROM sign_in_links WHERE expires_at < now()")
        until: datetime = await tx.fetchval(
            """INSERT INTO sign_in_links (token_hash, user_id, made_by, expires_at)
               VALUES ($1, $2, $3, now() + $4::interval) RETURNING expires_at""",
            fingerprint(token),
            person.id,
            context.principal.display,
            LIFETIME,
        )
        await audit.record(tx, context.caller, person.target)
        return until

    until = await context.services.database.transact(work)
    # The token is in the fragment, after `#`, so that no server or proxy on the way logs it.
    return SignInLink(url=f"{context.services.outbox.base_url}/#/sign-in-link?token={token}", expires_at=until)


async def _who(tx: Transaction, request: SignInLinkRequest) -> Person:
    customer = await locked_customer(tx, request.id)
    if request.member is None or customer.status is PersonStatus.SUSPENDED:
        return customer
    user_id = await tx.fetchval(
        "SELECT user_id FROM account_members WHERE id = $1 AND account_id = $2", request.member, customer.id
    )
    if user_id is None:
        raise not_found("There is no such member of this account.")
    person = await person_records.locked(tx, user_id)
    if person.role not in _LET_IN:
        raise conflict(f"{person.email} is not a customer; no link was created.")
    return person


@operations.declare(
    "session.link",
    "Sign in with a link that a billing system created",
    Route.post("/auth/link"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    target="user",
)
async def sign_in(context: Context[Panel], request: LinkSignInRequest) -> LoginResult:

    async def work(tx: Transaction) -> LoginResult:
        # The row is deleted by the first use: of two concurrent uses of a link, one finds no row.
        link = await tx.fetchrow(
            "DELETE FROM sign_in_links WHERE token_hash = $1 AND expires_at > now() RETURNING user_id, made_by",
            fingerprint(request.token),
        )
        if link is None:
            raise no_such_link()
        person = await person_records.locked(tx, link["user_id"])
        if person.status is PersonStatus.SUSPENDED or person.role not in _LET_IN:
            raise no_such_link()
        return await start_linked_session(context, tx, person, link["made_by"])

    return await context.services.database.transact(work)
