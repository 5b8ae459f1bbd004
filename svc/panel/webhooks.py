"""Webhooks: the URLs that get the server's events, and the log of deliveries. Administrators only."""

from __future__ import annotations

from uuid import UUID

from svc.identity.webhooks import SELECT_DELIVERIES
from svc.panel.services import Panel
from svc.panel.webhook_models import (
    SELECT_ENDPOINTS,
    DeliveryListRequest,
    DeliveryRequest,
    WebhookCreateRequest,
    WebhookDelivery,
    WebhookDeliveryDetail,
    WebhookEndpoint,
    WebhookRequest,
    WebhookSecret,
    WebhookTestRequest,
    WebhookUpdateRequest,
)
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.errors import conflict, not_found
from svc_actors.panel.webhooks import endpoints
from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.panel.webhooks.outbox import emit_to
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.endpoint import utc_now
from svc_actors.webhooks.endpoints import no_such_endpoint
from svc_actors.webhooks.receivers import ReceiverUrl

operations = Operations[Panel]()


@operations.declare(
    "webhook.list",
    "The endpoints that events are delivered to",
    Route.get("/webhooks"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("url", "enabled", "waiting", "delivered=delivered_at", "ends in=secret_last_four", "id"),
)
async def list_endpoints(context: Context[Panel], request: PageRequest) -> Page[WebhookEndpoint]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_ENDPOINTS,
        source="webhook_endpoints AS e",
        where=[contains(request.q, "e.url")],
        sortable={"created_at": "e.created_at", "url": "e.url"},
        default_sort="created_at",
        request=request,
        tie="e.id",
    )
    return Page[WebhookEndpoint].of([WebhookEndpoint.of(row) for row in rows], total, request)


@operations.declare(
    "webhook.get", "One endpoint", Route.get("/webhooks/{id}"), access=Access.ADMINISTRATOR, scope=Scope.READ
)
async def get_endpoint(context: Context[Panel], request: WebhookRequest) -> WebhookEndpoint:
    return WebhookEndpoint.of(await _endpoint(context.services.database, request.id))


@operations.declare(
    "webhook.create",
    "Create an endpoint that events are delivered to, an https:// URL; its signing secret is shown once",
    Route.post("/webhooks", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("url",),
    secret=True,
)
async def create(context: Context[Panel], request: WebhookCreateRequest) -> WebhookSecret:
    await context.services.receivers.vet(request.url)

    async def work(tx: Transaction) -> WebhookSecret:
        issued = await endpoints.create(
            tx, context.services.sealer, request.url, request.events, enabled=request.enabled
        )
        row = await _endpoint(tx, issued.id)
        await audit.record(
            tx, context.caller, _target(row["id"], row), {"events": row["events"], "enabled": request.enabled}
        )
        return WebhookSecret.with_secret(row, issued.secret)

    return await context.services.database.transact(work)


@operations.declare(
    "webhook.update",
    "Change an endpoint's URL or events, or enable or disable it; deliveries to a disabled one wait",
    Route.patch("/webhooks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Panel], request: WebhookUpdateRequest) -> WebhookEndpoint:
    if request.url is not None:
        await context.services.receivers.vet(request.url)

    async def work(tx: Transaction) -> WebhookEndpoint:
        await endpoints.update(tx, request.id, url=request.url, wanted=request.events, enabled=request.enabled)
        row = await _endpoint(tx, request.id)
        changed = request.model_dump(mode="json", exclude={"id", "url"}, exclude_none=True)
        await audit.record(tx, context.caller, _target(row["id"], row), changed)
        return WebhookEndpoint.of(row)

    return await context.services.database.transact(work)


@operations.declare(
    "webhook.delete",
    "Delete an endpoint with its deliveries, pending ones included",
    Route.delete("/webhooks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete(context: Context[Panel], request: WebhookRequest) -> Empty:

    async def work(tx: Transaction) -> None:
        row = await endpoints.delete(tx, request.id)
        await audit.record(tx, context.caller, _target(request.id, row))

    await context.services.database.transact(work)
    return Empty()


@operations.declare(
    "webhook.rotate",
    "Create a new secret, shown once; it replaces the old one at once, for retries too",
    Route.post("/webhooks/{id}/rotate"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    confirm=True,
    secret=True,
)
async def rotate(context: Context[Panel], request: WebhookRequest) -> WebhookSecret:

    async def work(tx: Transaction) -> WebhookSecret:
        issued = await endpoints.rotate(tx, context.services.sealer, request.id)
        row = await _endpoint(tx, request.id)
        await audit.record(tx, context.caller, _target(row["id"], row))
        return WebhookSecret.with_secret(row, issued.secret)

    return await context.services.database.transact(work)


@operations.declare(
    "webhook.test",
    "Send a test delivery, marked by `test` in its data, the way all deliveries go",
    Route.post("/webhooks/{id}/test"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def test(context: Context[Panel], request: WebhookTestRequest) -> WebhookDelivery:

    async def work(tx: Transaction) -> WebhookDelivery:
        row = await _endpoint(tx, request.id)
        if not row["enabled"]:
            raise conflict("This webhook endpoint is not enabled.", hint="Enable it first.")
        event = request.event or _tested_with(row["events"])
        delivery_id = await emit_to(tx, request.id, event, data={"test": True})
        await audit.record(
            tx, context.caller, _target(row["id"], row), {"delivery": str(delivery_id), "event": event.value}
        )
        return WebhookDelivery.of(await _delivery(tx, request.id, delivery_id))

    return await context.services.database.transact(work)


@operations.declare(
    "webhook.deliveries",
    "Deliveries to an endpoint and their outcomes, newest first",
    Route.get("/webhooks/{id}/deliveries"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=(
        "created=created_at",
        "event",
        "status",
        "attempts",
        "answer=response_status",
        "error",
        "next=next_attempt_at",
        "id",
    ),
)
async def list_deliveries(context: Context[Panel], request: DeliveryListRequest) -> Page[WebhookDelivery]:
    database = context.services.database
    await _endpoint(database, request.id)
    rows, total = await paginate(
        database,
        select=SELECT_DELIVERIES,
        source="webhook_deliveries AS d JOIN webhook_events AS v ON v.id = d.event_id",
        where=[
            Condition("d.endpoint_id = $1", (request.id,)),
            equals("d.status", request.status),
            equals("v.event", request.event),
            contains(request.q, "d.id::text", "d.event_id::text", "d.error"),
        ],
        sortable={"created_at": "d.created_at"},
        default_sort="-created_at",
        request=request,
        tie="d.id",
    )
    return Page[WebhookDelivery].of([WebhookDelivery.of(row) for row in rows], total, request)


@operations.declare(
    "webhook.delivery",
    "One delivery, with the body as it is sent",
    Route.get("/webhooks/{id}/deliveries/{delivery_id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def get_delivery(context: Context[Panel], request: DeliveryRequest) -> WebhookDeliveryDetail:
    database = context.services.database
    row = await _delivery(database, request.id, request.delivery_id)
    body: bytes = await database.fetchval("SELECT body FROM webhook_events WHERE id = $1", row["event_id"])
    return WebhookDeliveryDetail(**dict(row), payload=body.decode())


@operations.declare(
    "webhook.replay",
    "Deliver again: the same event under the same delivery id, at once and with six attempts",
    Route.post("/webhooks/{id}/deliveries/{delivery_id}/replay"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def replay(context: Context[Panel], request: DeliveryRequest) -> WebhookDelivery:

    async def work(tx: Transaction) -> WebhookDelivery:
        row = await _endpoint(tx, request.id)
        await deliveries.replay(tx, request.id, request.delivery_id, utc_now())
        await audit.record(tx, context.caller, _target(row["id"], row), {"delivery": str(request.delivery_id)})
        return WebhookDelivery.of(await _delivery(tx, request.id, request.delivery_id))

    return await context.services.database.transact(work)


def _tested_with(events: list[str]) -> WebhookEvent:
    """The event that does the least harm at a receiver that ignores `test`: it creates, suspends or deletes nothing of
    a customer's."""
    if WebhookEvent.UPDATE_INSTALLED in events or events == [endpoints.EVERY_EVENT]:
        return WebhookEvent.UPDATE_INSTALLED
    return WebhookEvent(events[0])


def _target(endpoint_id: UUID, row: Record) -> Target:
    """The audit is kept for years, so it gets only the host of a URL: receivers put keys into paths."""
    return Target("webhook", endpoint_id, ReceiverUrl.parse(row["url"]).host)


async def _endpoint(queryable: Queryable, endpoint_id: UUID) -> Record:
    row = await queryable.fetchrow(f"{SELECT_ENDPOINTS} WHERE e.id = $1", endpoint_id)
    if row is None:
        raise no_such_endpoint()
    return row


async def _delivery(queryable: Queryable, endpoint_id: UUID, delivery_id: UUID) -> Record:
    row = await queryable.fetchrow(
        f"{SELECT_DELIVERIES} WHERE d.id = $1 AND d.endpoint_id = $2", delivery_id, endpoint_id
    )
    if row is None:
        raise not_found("There is no such delivery.", hint="Deliveries are kept for 14 days, 500 per endpoint.")
    return row
