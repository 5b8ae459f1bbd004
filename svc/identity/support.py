"""Support sessions: an administrator inside a customer's account, for 30 minutes, to look (specification,
Authentication).

Invariants: a support session starts only from an administrator's own browser session, never from a token or from
another support session, and only in a customer's account; an administrator leads one at a time. Its start, and
everything that is done in it, is in the audit among the customer's entries, with the names of both, so that the
customer can read it. The cookie is generated anew at its start and its end. The operator's own session ended when the
support session started; afterwards a new one starts, which lasts no longer than the old one would have.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from svc.identity import person_records, sessions
from svc.identity.fields import Reason
from svc.identity.services import IdentityServices
from svc.identity.sign_in import LoginResult, SignedIn
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.store import Via, audit
from svc_common.errors import conflict, forbidden

operations = Operations[IdentityServices]()


_IN_ONE_ALREADY = """
SELECT EXISTS (SELECT FROM impersonations AS i JOIN sessions AS s ON s.impersonation_id = i.id
               WHERE i.operator_id = $1 AND i.ended_at IS NULL AND i.expires_at > now() AND s.expires_at > now())"""


class ImpersonateRequest(Request):
    """`reason` is kept; the customer sees the session in their activity."""

    id: UUID
    reason: Reason


class SupportSession(Model):
    """The cookie is now the customer's, until `expires_at` or POST /impersonation/end."""

    id: UUID
    operator: str
    customer: SignedIn
    reason: str
    started_at: datetime
    expires_at: datetime


class ImpersonationList(PageRequest):
    id: UUID


class ImpersonationRecord(Model):
    """Who was inside an account, why and how long. `ended_at` is None while it lasts, and for one that nobody ended
    before `expires_at`."""

    id: UUID
    operator_id: UUID
    operator: str
    customer_id: UUID
    customer: str
    reason: str
    started_at: datetime
    expires_at: datetime
    ended_at: datetime | None


@operations.declare(
    "person.impersonate",
    "Start a support session in a customer's account",
    Route.post("/admin/users/{id}/impersonate"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def impersonate(context: Context[IdentityServices], request: ImpersonateRequest) -> SupportSession:
    principal = context.principal
    if principal.session_id is None:
        raise forbidden("A support session starts from a browser session, never from a token.")
    async with context.services.database.transaction() as tx:
        # Both rows are locked, always in the same order. The lock of the operator's row serialises two starts by the
        # same operator.
        await tx.execute("SELECT FROM users WHERE id = ANY($1) ORDER BY id FOR UPDATE", [request.id, principal.user_id])
        customer = await person_records.person(tx, request.id)
        if customer.id == principal.user_id:
            raise forbidden("Nobody needs a support session in their own account.")
        if customer.role is not Role.CUSTOMER:
            raise forbidden("A support session is never in the account of an administrator or a staff member.")
        if await tx.fetchval(_IN_ONE_ALREADY, principal.user_id):
            raise conflict(
                "A support session of yours is open in another browser; this one was not started.",
                hint="End it there, or wait until its 30 minutes have passed.",
            )
        row = await tx.fetchrow(
            """
            INSERT INTO impersonations (operator_id, customer_id, reason, expires_at, return_until)
            SELECT $1, $2, $3, now() + $4::interval, s.expires_at FROM sessions AS s WHERE s.id = $5
            RETURNING id, started_at, expires_at
            """,
            principal.user_id,
            customer.id,
            request.reason,
            sessions.SUPPORT,
            principal.session_id,
        )
        if row is None:
            raise forbidden("This session has just ended: sign in again.")
        session = await sessions.create(
            tx,
            customer.id,
            address=context.caller.address,
            user_agent=context.user_agent,
            replaces=principal.session_id,
            lasts=sessions.SUPPORT,
            impersonation_id=row["id"],
        )
        impersonating = replace(
            context,
            caller=replace(
                context.caller,
                actor_id=customer.id,
                actor=f"{principal.email} as {customer.email}",
                role=customer.role.value,
                via=Via.IMPERSONATION,
                impersonation_id=row["id"],
                impersonator_id=principal.user_id,
            ),
        )
        await audit.record(tx, impersonating.caller, customer.target, {"reason": request.reason})
    context.effects.set_session = session.cookie
    return SupportSession(
        id=row["id"],
        operator=principal.email or "",
        customer=SignedIn(id=customer.id, email=customer.email, name=customer.name, role=customer.role),
        reason=request.reason,
        started_at=row["started_at"],
        expires_at=row["expires_at"],
    )


@operations.declare(
    "impersonation.end",
    "End the support session and return to the caller's own",
    Route.post("/impersonation/end"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    in_support_session=True,
    target="user",
)
async def end_impersonation(context: Context[IdentityServices], request: Empty) -> LoginResult:
    principal = context.principal
    if principal.impersonation_id is None or principal.session_id is None or principal.impersonator_id is None:
        raise conflict("This is not a support session.")
    async with context.services.database.transaction() as tx:
        return_until: datetime = await tx.fetchval(
            "SELECT return_until FROM impersonations WHERE id = $1", principal.impersonation_id
        )
        operator = await person_records.locked(tx, principal.impersonator_id)
        customer = await person_records.person(tx, context.principal.user_id or operator.id)
        session = await sessions.create(
            tx,
            operator.id,
            address=context.caller.address,
            user_agent=context.user_agent,
            replaces=principal.session_id,
            not_after=return_until,
        )
        await audit.record(tx, context.caller, customer.target, {"impersonation_id": str(principal.impersonation_id)})
    context.effects.set_session = session.cookie
    user = SignedIn(id=operator.id, email=operator.email, name=operator.name, role=operator.role)
    return LoginResult(user=user, expires_at=session.expires_at)


@operations.declare(
    "person.impersonations",
    "List the support sessions in this account",
    Route.get("/admin/users/{id}/impersonations"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def list_impersonations(
    context: Context[IdentityServices], request: ImpersonationList
) -> Page[ImpersonationRecord]:
    database = context.services.database
    await person_records.person(database, request.id)
    rows, total = await paginate(
        database,
        select="""
        SELECT i.id, i.operator_id, o.email AS operator, i.customer_id, c.email AS customer, i.reason, i.started_at,
               i.expires_at, i.ended_at
        FROM impersonations AS i JOIN users AS o ON o.id = i.operator_id JOIN users AS c ON c.id = i.customer_id""",
        source="impersonations AS i JOIN users AS o ON o.id = i.operator_id",
        where=[equals("i.customer_id", request.id), contains(request.q, "o.email", "i.reason")],
        sortable={"started_at": "i.started_at", "operator": "o.email"},
        default_sort="-started_at",
        request=request,
        tie="i.id",
    )
    return Page[ImpersonationRecord].of([ImpersonationRecord(**dict(row)) for row in rows], total, request)
