"""Members: people whom a customer lets work in their account, or in one site of it, with a role (`member_roles`).

Invariants: nobody becomes a member without accepting. Until then the customer only sees the invited address, so that an
invitation does not reveal who has an account here. The customer and administrators may change members; a member may
leave.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.identity import mail_texts, password_links, person_records
from svc.identity.deletion import remove_person
from svc.identity.fields import Email
from svc.identity.password_links import INVITATION_LASTS
from svc.identity.settings import read_settings
from svc.panel.accounts.member_roles import MemberRole
from svc.panel.services import Panel
from svc.panel.sites.access import locked_site_of, visible_row
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import EVERYTHING, Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc_actors.mail import MailKind, NewMail
from svc_actors.panel.accounts import members
from svc_actors.store import Queryable, Record, Transaction, audit
from svc_common.errors import conflict, forbidden, not_found, wrong_field

operations = Operations[Panel]()


class MemberStatus(StrEnum):
    INVITED = "invited"
    ACTIVE = "active"


class Member(Model):
    """`site_id` and `domain` name the only site of the membership; null for the whole account. `name` is null until
    they have accepted."""

    id: UUID
    account_id: UUID
    account_email: str
    email: str
    name: str | None
    role: MemberRole
    site_id: UUID | None
    domain: str | None
    status: MemberStatus
    invited_by: str
    created_at: datetime
    accepted_at: datetime | None


class Membership(Model):
    """A membership of the caller. While the account is `suspended`, it gives access to nothing."""

    id: UUID
    account_id: UUID
    account_email: str
    role: MemberRole
    site_id: UUID | None
    domain: str | None
    status: MemberStatus
    suspended: bool
    invited_by: str
    created_at: datetime


class MemberList(PageRequest):
    """`account`: only members of this account, for administrators. `site`: everybody who may work in this site, members
    of the whole account included."""

    account: UUID | None = None
    site: UUID | None = None


class MemberInviteRequest(Request):
    """Invites to all sites of an account, or to one site. `account_id`: by default the caller's own account."""

    email: Email
    role: MemberRole
    site_id: Annotated[UUID | None, Field(description="Only this site; the whole account by default.")] = None
    account_id: Annotated[UUID | None, Field(description="The account; the caller's own by default.")] = None


class MemberRequest(Request):
    id: UUID


class MemberUpdateRequest(MemberRequest):
    role: MemberRole


_SOURCE: Final = """account_members AS given JOIN users AS person ON person.id = given.user_id
    JOIN users AS owner ON owner.id = given.account_id LEFT JOIN sites ON sites.id = given.site_id"""
_SELECT: Final = f"""
SELECT given.id, given.account_id, owner.email AS account_email, person.email, given.role, given.site_id, sites.domain,
       CASE WHEN given.accepted_at IS NOT NULL THEN person.name END AS name,
       CASE WHEN given.accepted_at IS NULL THEN 'invited' ELSE 'active' END AS status,
       given.invited_by, given.created_at, given.accepted_at
FROM {_SOURCE}"""
_SELECT_OWN: Final = f"""
SELECT given.id, given.account_id, owner.email AS account_email, given.role, given.site_id, sites.domain,
       CASE WHEN given.accepted_at IS NULL THEN 'invited' ELSE 'active' END AS status,
       owner.suspended_at IS NOT NULL AS suspended, given.invited_by, given.created_at
FROM {_SOURCE}"""


@operations.declare(
    "member.list",
    "The members of the caller's account; administrators see those of all accounts",
    Route.get("/members"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("email", "role", "site=domain", "status", "account=account_email", "id"),
)
async def list_members(context: Context[Panel], request: MemberList) -> Page[Member]:
    principal = context.principal
    own = EVERYTHING if principal.is_operator else equals("given.account_id", principal.user_id)
    of_site = EVERYTHING
    if request.site is not None:
        of_site = Condition(
            "coalesce(given.site_id = $1, given.account_id = (SELECT owner_id FROM sites WHERE id = $1))",
            (request.site,),
        )
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source=_SOURCE,
        where=[
            own,
            of_site,
            equals("given.account_id", request.account),
            contains(request.q, "person.email", "owner.email", "sites.domain"),
        ],
        sortable={"email": "person.email", "created_at": "given.created_at", "role": "given.role"},
        default_sort="email",
        request=request,
        tie="given.id",
    )
    return Page[Member].of([Member(**dict(row)) for row in rows], total, request)


@operations.declare(
    "membership.list",
    "The accounts and sites that the caller is a member of or invited to",
    Route.get("/memberships"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("account=account_email", "site=domain", "role", "status", "id"),
)
async def list_memberships(context: Context[Panel], request: PageRequest) -> Page[Membership]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT_OWN,
        source=_SOURCE,
        where=[
            Condition("given.user_id = $1", (context.principal.user_id,)),
            contains(request.q, "owner.email", "sites.domain"),
        ],
        sortable={"account": "owner.email", "created_at": "given.created_at"},
        default_sort="account",
        request=request,
        tie="given.id",
    )
    return Page[Membership].of([Membership(**dict(row)) for row in rows], total, request)


@operations.declare(
    "member.invite",
    "Invite a person to an account or to one of its sites; they get a mail, and accept or decline",
    Route.post("/members", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("email", "role"),
)
async def invite(context: Context[Panel], request: MemberInviteRequest) -> Member:

    async def work(tx: Transaction) -> Member:
        account_id, domain = await _where(tx, context.principal, request)
        owner = await person_records.locked(tx, account_id)
        if request.email == owner.email:
            raise conflict(
                f"{owner.email} owns this account and cannot be invited to it; nobody was invited.",
                hint="Give another address.",
            )
        if request.role is MemberRole.BILLING and request.site_id is not None:
            raise wrong_field(
                "role", "the role billing is for a whole account; leave out site_id or choose another role"
            )
        await members.count_invitation(tx, account_id, request.email)
        user_id = await tx.fetchval("SELECT id FROM users WHERE email = $1", request.email)
        if user_id is None:
            name = request.email.partition("@")[0]
            user_id = await person_records.add(tx, email=request.email, name=name, role=Role.MEMBER, password_hash=None)
            await context.services.person_added(tx, user_id, request.email, Role.MEMBER)
        by = context.principal.display
        member_id = await members.invite_member(tx, account_id, user_id, request.site_id, request.role, by)
        await _mail(context, tx, await person_records.person(tx, user_id), owner.email, domain, request.role)
        target = members.member_target(member_id, request.email, account_id)
        await audit.record(tx, context.caller, target, {"role": request.role.value, "site": domain})
        return Member(**dict(await tx.fetchone(f"{_SELECT} WHERE given.id = $1", member_id)))

    return await context.services.database.transact(work)


@operations.declare(
    "member.update",
    "Give a member another role",
    Route.patch("/members/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "role"),
)
async def update(context: Context[Panel], request: MemberUpdateRequest) -> Member:

    async def work(tx: Transaction) -> Member:
        row = await _changed(tx, context.principal, request.id)
        if request.role is MemberRole.BILLING and row["site_id"] is not None:
            raise wrong_field(
                "role", "the role billing is for a whole account, and this member has one site; choose another role"
            )
        await members.set_role(tx, request.id, request.role)
        target = members.member_target(request.id, row["email"], row["account_id"])
        await audit.record(tx, context.caller, target, {"role": request.role.value, "before": row["role"]})
        return Member(**dict(await tx.fetchone(f"{_SELECT} WHERE given.id = $1", request.id)))

    return await context.services.database.transact(work)


@operations.declare(
    "member.accept",
    "Accept an invitation to an account or a site",
    Route.post("/members/{id}/accept"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def accept(context: Context[Panel], request: MemberRequest) -> Membership:

    async def work(tx: Transaction) -> Membership:
        row = await _own(tx, context.principal, request.id)
        if row is None:
            # A caller who may see the membership gets the reason that only the invited person can accept it; others get
            # not_found.
            await _changed(tx, context.principal, request.id)
            raise forbidden(
                "Only the person who was invited can accept this invitation; nothing was changed.",
                hint="Ask them to sign in and accept it on the page Memberships.",
            )
        await members.accept(tx, request.id)
        target = members.member_target(request.id, row["email"], row["account_id"])
        await audit.record(tx, context.caller, target, {"role": row["role"]})
        return Membership(**dict(await tx.fetchone(f"{_SELECT_OWN} WHERE given.id = $1", request.id)))

    return await context.services.database.transact(work)


@operations.declare(
    "member.remove",
    "Remove a member, or leave: their access ends at once; SFTP logins belong to the site and stay",
    Route.delete("/members/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def remove(context: Context[Panel], request: MemberRequest) -> None:

    async def work(tx: Transaction) -> None:
        row = await _own(tx, context.principal, request.id) or await _changed(tx, context.principal, request.id)
        await members.remove_member(tx, request.id)
        target = members.member_target(request.id, row["email"], row["account_id"])
        await audit.record(tx, context.caller, target, {"role": row["role"], "site": row["domain"]})
        # The person was created by an invitation that was never used, so the person is deleted as well.
        if await tx.fetchval(
            """SELECT true FROM users WHERE id = $1 AND role = 'member' AND password_hash IS NULL
               AND last_sign_in_at IS NULL AND NOT EXISTS (SELECT FROM account_members WHERE user_id = $1)
               AND NOT EXISTS (SELECT FROM sites WHERE owner_id = $1)""",
            row["user_id"],
        ):
            await remove_person(tx, row["user_id"])

    await context.services.database.transact(work)


async def _where(tx: Transaction, principal: Principal, request: MemberInviteRequest) -> tuple[UUID, str | None]:
    """The account that the request invites to, and the domain if the invitation is to a single site."""
    if request.site_id is not None:
        site = await locked_site_of(tx, principal, request.site_id)
        if request.account_id not in (None, site.owner_id):
            raise wrong_field(
                "site_id", "this site belongs to another account; leave out account_id, or name a site of that account"
            )
        return site.owner_id, site.domain
    account_id = request.account_id or principal.user_id
    if account_id is None:
        raise wrong_field(
            "account_id",
            "name the account that the person is invited to",
            hint="Or give site_id, to invite to one site.",
        )
    row = await visible_row(
        tx,
        principal,
        "SELECT users.id, users.role FROM users",
        Condition("users.id = $1", (account_id,)),
        not_found("There is no such account."),
        owner="users.id",
        site="NULL::uuid",
    )
    if row["role"] == Role.MEMBER:
        raise forbidden(
            "This person is only a member of other people's accounts and has none to invite to; nobody was invited.",
            hint="Give account_id or site_id of an account that you may invite to.",
        )
    return account_id, None


async def _own(tx: Transaction, principal: Principal, member_id: UUID) -> Record | None:
    return await tx.fetchrow(
        f"{_LOCKED} WHERE given.id = $1 AND given.user_id = $2 FOR UPDATE OF given", member_id, principal.user_id
    )


async def _changed(queryable: Queryable, principal: Principal, member_id: UUID) -> Record:
    """The membership, if the caller may change it. Raises not_found, forbidden."""
    return await visible_row(
        queryable,
        principal,
        _LOCKED,
        Condition("given.id = $1", (member_id,)),
        not_found("There is no such member."),
        owner="given.account_id",
        site="given.site_id",
        lock="FOR UPDATE OF given",
    )


_LOCKED: Final = f"""SELECT given.id, given.account_id, given.user_id, given.site_id, given.role, person.email,
    sites.domain FROM {_SOURCE}"""


async def _mail(
    context: Context[Panel],
    tx: Transaction,
    person: person_records.Person,
    account: str,
    domain: str | None,
    role: MemberRole,
) -> None:
    """Queue the mail with the invitation. If the person has no password, it contains a link to set one."""
    outbox = context.services.outbox
    url, until = f"{outbox.base_url}/#/memberships", None
    if not await tx.fetchval("SELECT password_hash IS NOT NULL FROM users WHERE id = $1", person.id):
        token, until = await password_links.first_password_link(tx, person)
        url = mail_texts.link(outbox.base_url, token)
    subject, text = mail_texts.member_invitation(
        await read_settings(tx), person.name, account, domain, role.value, url, until
    )
    await outbox.write(
        tx,
        NewMail(
            kind=MailKind.MEMBER_INVITATION,
            recipient=person.email,
            subject=subject,
            text=text,
            lasts=INVITATION_LASTS,
            perishable=True,
            user_id=person.id,
        ),
    )
