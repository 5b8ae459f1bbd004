"""Alert webhooks: which alerts go to which URL, and the log of deliveries. Administrators only."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from svc.controller.services import Controller
from svc.identity.webhooks import SELECT_DELIVERIES, Url
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.alerts import Severity
from svc_actors.controller.alert_webhooks import endpoints
from svc_actors.controller.alert_webhooks.telling import AlertEvent, tell_test
from svc_actors.errors import conflict, not_found
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoint import utc_now
from svc_actors.webhooks.endpoints import no_such_endpoint, rotate
from svc_actors.webhooks.receivers import ReceiverUrl

operations = Operations[Controller]()

_SELECT: Final = """
SELECT e.id, e.url, e.least, e.enabled, e.last_four AS secret_last_four, e.created_at, e.rotated_at,
       (SELECT count(*) FROM webhook_deliveries AS d
        WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL) AS waiting,
       (SELECT max(d.attempted_at) FROM webhook_deliveries AS d
        WHERE d.endpoint_id = e.id AND d.status = 'delivered') AS delivered_at
FROM webhook_endpoints AS e"""


class AlertWebhook(Model):
    """`least`: the least severity of the alerts that it is told. `waiting`: deliveries that are pending or retrying.
    `delivered_at`: when the receiver last took one of those that are kept."""

    id: UUID
    url: str
    least: Severity
    enabled: bool
    secret_last_four: str
    waiting: int
    delivered_at: datetime | None
    created_at: datetime
    rotated_at: datetime | None


class AlertWebhookSecret(AlertWebhook):
    """`secret` is shown this once."""

    secret: str


class AlertDelivery(Model):
    """`response_status` and `error` are of the last attempt: what the receiver answered, or why it did not."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    event: AlertEvent
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None
    duration_ms: int | None
    response_status: int | None
    error: str | None


class AlertDeliveryDetail(AlertDelivery):
    """`payload` is the body as it is sent."""

    payload: str


class AlertWebhookCreate(Request):
    url: Url
    least: Severity = Severity.CRITICAL


class AlertWebhookRequest(Request):
    id: UUID


class AlertWebhookUpdate(AlertWebhookRequest):
    """What is left out stays as it is."""

    url: Url | None = None
    least: Severity | None = None
    enabled: bool | None = None


class AlertDeliveryList(PageRequest):
    id: UUID
    status: DeliveryStatus | None = None
    event: AlertEvent | None = None


class AlertDeliveryRequest(AlertWebhookRequest):
    delivery_id: UUID


@operations.declare(
    "alert.webhooks",
    "The webhook receivers of alerts",
    Route.get("/alerts/webhooks"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("url", "least", "enabled", "waiting", "delivered=delivered_at", "id"),
)
async def list_webhooks(context: Context[Controller], request: PageRequest) -> Page[AlertWebhook]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="webhook_endpoints AS e",
        where=[contains(request.q, "e.url")],
        sortable={"created_at": "e.created_at", "url": "e.url"},
        default_sort="created_at",
        request=request,
        tie="e.id",
    )
    return Page[AlertWebhook].of([AlertWebhook(**dict(row)) for row in rows], total, request)


@operations.declare(
    "alert.webhook",
    "A receiver of alerts",
    Route.get("/alerts/webhooks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def get_webhook(context: Context[Controller], request: AlertWebhookRequest) -> AlertWebhook:
    return AlertWebhook(**dict(await _endpoint(context.services.database, request.id)))


@operations.declare(
    "alert.create_webhook",
    "Create a receiver that alerts are delivered to, an https:// URL; its signing secret is shown once",
    Route.post("/alerts/webhooks", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("url",),
    secret=True,
)
async def create(context: Context[Controller], request: AlertWebhookCreate) -> AlertWebhookSecret:
    await context.services.receivers.vet(request.url)

    async def work(tx: Transaction) -> AlertWebhookSecret:
        issued = await endpoints.create(tx, context.services.sealer, request.url, request.least)
        row = await _endpoint(tx, issued.id)
        await audit.record(tx, context.caller, _target(row), {"least": request.least.value})
        return AlertWebhookSecret(**dict(row), secret=issued.secret)

    return await context.services.database.transact(work)


@operations.declare(
    "alert.update_webhook",
    "Change a receiver's URL or least severity, or enable or disable it",
    Route.patch("/alerts/webhooks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Controller], request: AlertWebhookUpdate) -> AlertWebhook:
    if request.url is not None:
        await context.services.receivers.vet(request.url)

    async def work(tx: Transaction) -> AlertWebhook:
        await endpoints.update(tx, request.id, url=request.url, least=request.least, enabled=request.enabled)
        row = await _endpoint(tx, request.id)
        changed = request.model_dump(mode="json", exclude={"id", "url"}, exclude_none=True)
        await audit.record(tx, context.caller, _target(row), changed)
        return AlertWebhook(**dict(row))

    return await context.services.database.transact(work)


@operations.declare(
    "alert.delete_webhook",
    "Delete a receiver of alerts with its deliveries, pending ones included",
    Route.delete("/alerts/webhooks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete(context: Context[Controller], request: AlertWebhookRequest) -> Empty:

    async def work(tx: Transaction) -> None:
        row = await endpoints.delete(tx, request.id)
        host = ReceiverUrl.parse(row["url"]).host
        await audit.record(tx, context.caller, Target("webhook", request.id, host))

    await context.services.database.transact(work)
    return Empty()


@operations.declare(
    "alert.rotate_webhook",
    "Create a new secret, shown once; it replaces the old one at once, for retries too",
    Route.post("/alerts/webhooks/{id}/rotate"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    confirm=True,
    secret=True,
)
async def new_secret(context: Context[Controller], request: AlertWebhookRequest) -> AlertWebhookSecret:

    async def work(tx: Transaction) -> AlertWebhookSecret:
        issued = await rotate(tx, context.services.sealer, request.id)
        row = await _endpoint(tx, request.id)
        await audit.record(tx, context.caller, _target(row))
        return AlertWebhookSecret(**dict(row), secret=issued.secret)

    return await context.services.database.transact(work)


@operations.declare(
    "alert.test_webhook",
    "Send a test delivery, about no alert, the way all deliveries go",
    Route.post("/alerts/webhooks/{id}/test"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def test(context: Context[Controller], request: AlertWebhookRequest) -> AlertDelivery:

    async def work(tx: Transaction) -> AlertDelivery:
        row = await _endpoint(tx, request.id)
        if not row["enabled"]:
            raise conflict("This webhook is not enabled.", hint="Enable it first.")
        delivery_id = await tell_test(tx, request.id)
        await audit.record(tx, context.caller, _target(row), {"delivery": str(delivery_id)})
        return AlertDelivery(**dict(await _delivery(tx, request.id, delivery_id)))

    return await context.services.database.transact(work)


@operations.declare(
    "alert.deliveries",
    "Deliveries to a receiver of alerts and their outcomes, newest first",
    Route.get("/alerts/webhooks/{id}/deliveries"),
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
async def list_deliveries(context: Context[Controller], request: AlertDeliveryList) -> Page[AlertDelivery]:
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
    return Page[AlertDelivery].of([AlertDelivery(**dict(row)) for row in rows], total, request)


@operations.declare(
    "alert.delivery",
    "One delivery of an alert, with the body as it is sent",
    Route.get("/alerts/webhooks/{id}/deliveries/{delivery_id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def get_delivery(context: Context[Controller], request: AlertDeliveryRequest) -> AlertDeliveryDetail:
    database = context.services.database
    row = await _delivery(database, request.id, request.delivery_id)
    body: bytes = await database.fetchval("SELECT body FROM webhook_events WHERE id = $1", row["event_id"])
    return AlertDeliveryDetail(**dict(row), payload=body.decode())


@operations.declare(
    "alert.replay",
    "Deliver again: the same event under the same delivery id, at once and with six attempts",
    Route.post("/alerts/webhooks/{id}/deliveries/{delivery_id}/replay"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def replay(context: Context[Controller], request: AlertDeliveryRequest) -> AlertDelivery:

    async def work(tx: Transaction) -> AlertDelivery:
        row = await _endpoint(tx, request.id)
        await deliveries.replay(tx, request.id, request.delivery_id, utc_now())
        await audit.record(tx, context.caller, _target(row), {"delivery": str(request.delivery_id)})
        return AlertDelivery(**dict(await _delivery(tx, request.id, request.delivery_id)))

    return await context.services.database.transact(work)


def _target(row: Record) -> Target:
    """The audit is kept for years, so it gets only the host of a URL: receivers put keys into paths."""
    return Target("webhook", row["id"], ReceiverUrl.parse(row["url"]).host)


async def _endpoint(queryable: Queryable, endpoint_id: UUID) -> Record:
    row = await queryable.fetchrow(f"{_SELECT} WHERE e.id = $1", endpoint_id)
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
