"""A billing system's orders: accounts created, suspended, reactivated, moved to another plan, terminated.

Every order takes an idempotency key, by the rules of `svc.registry.idempotency`, and is idempotent without one too: a
suspended account can be suspended again, perhaps with another reason. An order is decided in one transaction. The
programs on the server are changed afterwards; that is retried until it succeeds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Final, TypeVar
from uuid import UUID

import structlog
from pydantic import Field

from svc.identity import password_links, person_records
from svc.identity.fields import Email, Line, Name, NewPassword, Phone, Reason
from svc.identity.passwords import check_password
from svc.panel.accounts.models import (
    CUSTOMERS,
    SELECT_ACCOUNTS,
    SOURCE,
    Account,
    account_model,
    shown_account,
    visible_accounts,
)
from svc.panel.accounts.plans import PlanName
from svc.panel.services import Panel
from svc.panel.sites.creation import SiteFields, plan_site
from svc.panel.sites.fields import Domain, WithWww
from svc.panel.sites.models import Site, shown_site
from svc.panel.sites.sites import usable_name
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.panel.accounts.allowances import use_of
from svc_actors.panel.accounts.plans import give_plan, plan_named, write_suspended
from svc_actors.panel.host_work import soon
from svc_actors.panel.sites.following import limit_sites, restore_sites, suspend_sites
from svc_actors.panel.sites.resuming import follow
from svc_actors.panel.sites.site import Site as SiteActor
from svc_actors.panel.sites.states import SiteType
from svc_actors.store import Transaction, audit
from svc_common.errors import ServiceError, conflict, wrong_field
from svc_webhost.launcher import Limits

operations = Operations[Panel]()
log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.panel.accounts.billing")

T = TypeVar("T")

TERMINATION: Final = "account.terminate"
"""The kind of the job that terminates an account."""

IdempotencyKey = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        description="A repeated call with the same key has no further effect; the command generates one.",
    ),
    LINE,
]


class AccountListRequest(PageRequest):
    plan: PlanName | None = None


class AccountRequest(Request):
    id: UUID


class AccountOrderRequest(AccountRequest):
    idempotency_key: IdempotencyKey | None = None


class AccountCreateRequest(SiteFields):
    """A customer with a plan. `invite`: they are mailed a link to choose a password. `domain`: their first site, of the
    type `type` and with the fields that `site.create` takes for it. A WordPress site is created by a job; its status is
    `creating` in the answer."""

    email: Email
    name: Name
    plan: PlanName
    password: Annotated[NewPassword | None, Field(repr=False)] = None
    invite: bool = False
    phone: Phone = ""
    company: Line = ""
    domain: Domain | None = None
    www: WithWww = False
    type: SiteType = SiteType.STATIC
    idempotency_key: IdempotencyKey | None = None


class AccountCreated(Account):
    """`site` is the first site, if one was requested. It is `active` once it is served."""

    site: Site | None = None


class AccountSuspendRequest(AccountOrderRequest):
    """The customer is shown `reason` at sign-in; visitors see that the sites are suspended."""

    reason: Reason


class AccountUnsuspendRequest(AccountOrderRequest):
    """Sites that were suspended with the account are unsuspended; those that were suspended before stay suspended."""


class AccountPlanRequest(AccountOrderRequest):
    """A plan that allows less than the customer has is refused. With `accept_over_use` the customer gets the plan
    nevertheless, and can add nothing until they have less."""

    plan: PlanName
    accept_over_use: bool = False


@operations.declare(
    "account.list",
    "Customers with their plans and what they use; a customer sees their own account",
    Route.get("/accounts"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("email", "plan", "status", "sites=used.sites", "disk_mib=used.disk_mib", "id"),
)
async def list_accounts(context: Context[Panel], request: AccountListRequest) -> Page[Account]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_ACCOUNTS,
        source=SOURCE,
        where=[
            CUSTOMERS,
            visible_accounts(context.principal),
            equals("hosting_plans.name", request.plan),
            contains(request.q, "users.email", "users.name"),
        ],
        sortable={"email": "users.email", "created_at": "users.created_at"},
        default_sort="email",
        request=request,
        tie="users.id",
    )
    return Page[Account].of([account_model(row) for row in rows], total, request)


@operations.declare(
    "account.get",
    "One customer with their plan and what they use of it",
    Route.get("/accounts/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_account(context: Context[Panel], request: AccountRequest) -> Account:
    return await shown_account(context.services.database, context.principal, request.id)


@operations.declare(
    "account.create",
    "Create a customer with a plan, and with a first site if one is named",
    Route.post("/accounts", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("email",),
    statuses=(200,),
)
async def create(context: Context[Panel], request: AccountCreateRequest) -> AccountCreated:
    return await ordered(context, request.idempotency_key, request, lambda: _create(context, request))


async def _create(context: Context[Panel], request: AccountCreateRequest) -> AccountCreated:
    services = context.services
    if request.invite and request.password is not None:
        raise wrong_field("invite", "cannot be combined with a password: an invited person chooses their own")
    password_hash = None
    if request.password is not None:
        check_password(request.password, [request.email.partition("@")[0]])
        password_hash = await services.passwords.hash(request.password)
    planned = None
    if request.domain is not None:
        domain = usable_name(context, request.domain)
        planned = await plan_site(context, request.type, request, domain, (), request.email, www=request.www)
    elif request.model_fields_set & {"type", *SiteFields.model_fields}:
        raise wrong_field("domain", "is required with other fields of a first site")
    ordered_by = None
    if request.idempotency_key is not None:
        ordered_by = f"{key_owner(context.principal)} {request.idempotency_key}"

    async def work(tx: Transaction) -> tuple[UUID, UUID | None]:
        made = await tx.fetchval("SELECT user_id FROM hosting_accounts WHERE ordered_by = $1", ordered_by)
        if made is not None:
            # The site was created by an earlier call with this key, which ended before it answered.
            site = await tx.fetchval("SELECT id FROM sites WHERE owner_id = $1 AND domain = $2", made, request.domain)
            return made, site
        user_id = await _customer(tx, request, password_hash)
        await give_plan(tx, user_id, await plan_named(tx, request.plan), ordered_by)
        person = await person_records.person(tx, user_id)
        if request.invite:
            await password_links.send_invitation(tx, services.outbox, person)
        await audit.record(tx, context.caller, person.target, {"plan": request.plan, "invited": request.invite})
        if planned is None:
            return user_id, None
        caller = replace(context.caller, operation="site.create")
        return user_id, (await planned.record(tx, caller, user_id, Limits())).id

    account_id, site_id = await services.database.transact(work)
    if site_id is not None and planned is not None and not planned.by_job:
        try:
            await soon(services.actors.ref(SiteActor, str(site_id)).ask(SiteActor.build))
        except ServiceError as error:
            # The account exists, so the order succeeds. The site's status shows whether its creation continues or has
            # failed, and why.
            log.warning("account.first_site_not_built", site=str(site_id), error=error.message)
    account = await shown_account(services.database, context.principal, account_id)
    site = await shown_site(services, context.principal, site_id) if site_id is not None else None
    return AccountCreated(**account.model_dump(), site=site)


async def _customer(tx: Transaction, request: AccountCreateRequest, password_hash: str | None) -> UUID:
    """Add a new person, or turn a member of other people's accounts into a customer; returns the id. Raises `conflict`
    for anybody else."""
    values = {"name": request.name, "phone": request.phone, "company": request.company}
    member = await tx.fetchrow(
        "SELECT id, password_hash FROM users WHERE email = $1 AND role = $2 FOR UPDATE", request.email, Role.MEMBER
    )
    if member is None:
        return await person_records.add(
            tx, email=request.email, role=Role.CUSTOMER, password_hash=password_hash, **values
        )
    kept = member["password_hash"] or password_hash  # a password that the person has chosen stays
    await person_records.change(tx, member["id"], values | {"role": Role.CUSTOMER, "password_hash": kept})
    made: UUID = member["id"]
    return made


@operations.declare(
    "account.suspend",
    "Suspend a customer: sites show that they are suspended, sign-in, tokens and SFTP are refused",
    Route.post("/accounts/{id}/suspend"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
    frees_space=True,
)
async def suspend(context: Context[Panel], request: AccountSuspendRequest) -> Account:

    async def work(tx: Transaction) -> list[UUID]:
        person = await locked_customer(tx, request.id)
        await write_suspended(tx, person.id, request.reason)
        await person_records.suspend(tx, person.id, request.reason)
        changed = await suspend_sites(tx, person.id, request.reason)
        await audit.record(tx, context.caller, person.target, {"reason": request.reason, "sites": len(changed)})
        return changed

    return await _decided(context, request, work)


@operations.declare(
    "account.unsuspend",
    "Unsuspend a customer, with everything that was suspended with them",
    Route.post("/accounts/{id}/unsuspend"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def unsuspend(context: Context[Panel], request: AccountUnsuspendRequest) -> Account:

    async def work(tx: Transaction) -> list[UUID]:
        person = await locked_customer(tx, request.id)
        await _refuse_while_ended(tx, person)
        reason = await tx.fetchval("SELECT suspended_for FROM hosting_accounts WHERE user_id = $1", person.id)
        if reason is not None and person.suspension_reason == reason:
            await person_records.change(tx, person.id, {"suspended_at": None, "suspension_reason": None})
        await write_suspended(tx, person.id, None)
        changed = await restore_sites(tx, person.id)
        await audit.record(tx, context.caller, person.target, {"sites": len(changed)})
        return changed

    return await _decided(context, request, work)


@operations.declare(
    "account.change_plan",
    "Change the plan of a customer",
    Route.post("/accounts/{id}/plan"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def change_plan(context: Context[Panel], request: AccountPlanRequest) -> Account:

    async def work(tx: Transaction) -> list[UUID]:
        person = await locked_customer(tx, request.id)
        before = await shown_account(tx, context.principal, person.id)
        await give_plan(tx, person.id, await plan_named(tx, request.plan))
        after = await shown_account(tx, context.principal, person.id)
        over = (await use_of(tx, person.id)).over(after.allowed.as_allowances())
        if over and not request.accept_over_use:
            raise conflict(
                f"{person.email} has more than the plan {request.plan} allows: {'; '.join(over)}. Nothing was changed.",
                hint="Delete what exceeds the plan, or set accept_over_use: it stays, and nothing can be added.",
            )
        changed = await limit_sites(tx, person.id, before.allowed.as_allowances(), after.allowed.as_allowances())
        details = {"plan": request.plan, "before": before.plan, "over": over}
        await audit.record(tx, context.caller, person.target, details)
        return changed

    return await _decided(context, request, work)


async def _refuse_while_ended(tx: Transaction, person: person_records.Person) -> None:
    """Raises `conflict` while the account is being terminated: otherwise sites that are about to be deleted would be
    served again."""
    job = await tx.fetchval(
        """SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') AND parameters ->> 'user_id' = $2""",
        TERMINATION,
        str(person.id),
    )
    if job is not None:
        raise conflict(
            f"The job {job} is terminating the account {person.email}; it was not unsuspended.",
            hint="Cancel that job first; what it has deleted stays deleted.",
        )


async def _decided(
    context: Context[Panel], request: AccountOrderRequest, work: Callable[[Transaction], Awaitable[list[UUID]]]
) -> Account:
    """Decide about an account in one transaction. `work` makes the change and returns the ids of the sites that have to
    be updated on the server."""

    async def run() -> Account:
        changed = await context.services.database.transact(work)
        await follow(context.services.actors, changed)
        return await shown_account(context.services.database, context.principal, request.id)

    return await ordered(context, request.idempotency_key, request, run)


async def ordered(context: Context[Panel], key: str | None, request: Request, run: Callable[[], Awaitable[T]]) -> T:
    """The answer of `run`, which is executed once for each key. If the stored answer of an order that created something
    is replayed, the status is 200."""
    answer, replayed = await run_idempotent(context, key=key, request=request, run=run)
    if replayed:
        context.effects.status = 200
    return answer


async def locked_customer(tx: Transaction, account_id: UUID) -> person_records.Person:
    """The customer, with the row locked. Raises not_found, and `conflict` for a person who is no customer."""
    person = await person_records.locked(tx, account_id)
    if person.role is not Role.CUSTOMER:
        raise conflict(f"{person.email} is not a customer; nothing was changed.")
    return person
