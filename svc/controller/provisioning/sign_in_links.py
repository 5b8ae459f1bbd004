"""Single sign-on: a link that signs a browser in as the customer of a service, for a billing system that has
authenticated them.

Only administrators may create links, as only they may start support sessions: the creator of a link can act as any
customer.

Invariants: a link works once, for 90 seconds, and only into a customer's account that is not suspended; it leads to a
path of this service and nowhere else; its creator is recorded with the session that it starts; only its SHA-256 is
stored.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from svc.controller.provisioning.models import ServiceRequest
from svc.controller.services import Controller
from svc.identity import person_records
from svc.identity.person_records import PersonStatus
from svc.identity.sign_in_links import LinkToken, SignInLink, no_such_link, start_linked_session
from svc.registry.declare import Operations
from svc.registry.operation import Context, Presentation, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.controller.provisioning.records import lock_service
from svc_actors.controller.provisioning.states import ServiceState
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict

operations = Operations[Controller]()

LIFETIME: Final = timedelta(seconds=90)


class RedeemRequest(Request):
    token: LinkToken


@operations.declare(
    "service.sso",
    "Create a link that signs a browser in as the customer of a service, once, within 90 seconds",
    Route.post("/provision/services/{id}/sso"),
    access=Access.ADMINISTRATOR,
    scope=Scope.PROVISION,
    secret=True,
)
async def make_link(context: Context[Controller], request: ServiceRequest) -> SignInLink:
    token = new_secret()

    async def work(tx: Transaction) -> datetime:
        service = await lock_service(tx, request.id)
        if service.state is ServiceState.TERMINATED or service.customer_id is None:
            raise conflict("The service is terminated, or its customer is deleted; no link was created.")
        person = await person_records.person(tx, service.customer_id)
        if person.status is PersonStatus.SUSPENDED:
            raise conflict(f"The account {person.email} is suspended.", hint="Restore it first.")
        await tx.execute("DELETE FROM service_sign_in_links WHERE expires_at < now()")
        until: datetime = await tx.fetchval(
            """INSERT INTO service_sign_in_links (token_hash, service_id, made_by, expires_at)
               VALUES ($1, $2, $3, now() + $4::interval) RETURNING expires_at""",
            fingerprint(token),
            service.id,
            context.principal.display,
            LIFETIME,
        )
        await audit.record(tx, context.caller, service.target, {"customer": person.email})
        return until

    until = await context.services.database.transact(work)
    return SignInLink(url=f"{context.services.config.public_url}/api/v1/sso/{token}", expires_at=until)


@operations.declare(
    "session.sso",
    "Sign in with a link that a billing system created",
    Route.get("/sso/{token}"),
    access=Access.PUBLIC,
    scope=Scope.WRITE,
    presentation=Presentation.REDIRECT,
    hidden=True,
    target="user",
)
async def redeem(context: Context[Controller], request: RedeemRequest) -> str:

    async def work(tx: Transaction) -> str:
        # The row is deleted by the first use: of two concurrent uses of a link, one finds no row.
        link = await tx.fetchrow(
            """DELETE FROM service_sign_in_links WHERE token_hash = $1 AND expires_at > now()
               RETURNING service_id, made_by""",
            fingerprint(request.token),
        )
        if link is None:
            raise no_such_link()
        service = await lock_service(tx, link["service_id"])
        if service.customer_id is None:
            raise no_such_link()
        person = await person_records.locked(tx, service.customer_id)
        if person.status is PersonStatus.SUSPENDED or person.role is not Role.CUSTOMER:
            raise no_such_link()
        await start_linked_session(context, tx, person, link["made_by"])
        return "/" if service.vm_id is None else f"/#/machines/{service.vm_id}"

    return await context.services.database.transact(work)
