"""Webhooks: endpoints that events are delivered to, and the log of deliveries. Administrators only. Shared by both
services.

Each service has a subclass of `Webhooks` with its events, the columns that select events for an endpoint, and the names
of its models and operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar
from uuid import UUID

from pydantic import Field

from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route, Services
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_actors.webhooks import deliveries, endpoints
from svc_actors.webhooks.delivery_states import DeliveryStatus
from svc_actors.webhooks.endpoint import utc_now
from svc_actors.webhooks.endpoints import EndpointSecret
from svc_actors.webhooks.receivers import LONGEST_URL, Receivers, ReceiverUrl
from svc_common.errors import conflict

EventT = TypeVar("EventT", bound=str)
CreateT = TypeVar("CreateT", bound="CreateRequest")
UpdateT = TypeVar("UpdateT", bound="UpdateRequest")
TestT = TypeVar("TestT", bound="EndpointRequest")
ModelT = TypeVar("ModelT", bound=Model)

_DELIVERIES: Final = "webhook_deliveries AS d JOIN webhook_events AS v ON v.id = d.event_id"
_SELECT_DELIVERIES: Final = f"""
SELECT d.id, d.endpoint_id, d.event_id, v.event, d.status, d.attempts, d.created_at, d.attempted_at,
       d.next_attempt_at, d.duration_ms, d.response_status, d.error
FROM {_DELIVERIES}"""
_DELIVERY_COLUMNS: Final = (
    "created=created_at",
    "event",
    "status",
    "attempts",
    "answer=response_status",
    "error",
    "next=next_attempt_at",
    "id",
)

Url = Annotated[
    str,
    Field(min_length=9, max_length=LONGEST_URL),
    Shape(r"[!-~]*", "an https:// URL of printable ASCII without spaces"),
]


class WebhookServices(Services, Protocol):
    @property
    def receivers(self) -> Receivers: ...


class Delivery(Model, Generic[EventT]):
    """`response_status` and `error` are of the last attempt."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    event: EventT
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None
    duration_ms: int | None
    response_status: int | None
    error: str | None


class EndpointRequest(Request):
    id: UUID


class CreateRequest(Request):
    url: Url


class UpdateRequest(EndpointRequest):
    """Fields left out stay as they are."""

    url: Url | None = None


class DeliveryRequest(EndpointRequest):
    delivery_id: UUID


class DeliveryListRequest(PageRequest, Generic[EventT]):
    id: UUID
    status: DeliveryStatus | None = None
    event: EventT | None = None


Named = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of operations, with the summaries that differ."""

    list_endpoints: Named
    get: Named
    create: Named
    update: Named
    delete: Named
    rotate: str
    test: Named
    list_deliveries: Named
    get_delivery: Named
    replay: str


ENDPOINT: Final = """
    e.id, e.url, e.enabled, e.last_four AS secret_last_four, e.created_at, e.rotated_at,
    (SELECT count(*) FROM webhook_deliveries AS d
     WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL) AS waiting,
    (SELECT max(d.attempted_at) FROM webhook_deliveries AS d
     WHERE d.endpoint_id = e.id AND d.status = 'delivered') AS delivered_at"""
"""The columns that every model of an endpoint shows."""


class Webhooks(ABC, Generic[CreateT, UpdateT, TestT]):
    """The webhooks of one service. The names of the models are the service's own, since its OpenAPI document contains
    them."""

    path: ClassVar[str]
    names: ClassVar[Names]
    columns: ClassVar[tuple[str, ...]]
    """The columns of the list of endpoints on the command line."""
    select: ClassVar[str]
    """SELECT of endpoints: the columns of `ENDPOINT` and the service's own. A constant, as every recorded statement
    is."""
    audited: ClassVar[tuple[str, ...]]
    """The fields of a new endpoint that the audit records."""

    endpoint: ClassVar[type[Model]]
    endpoint_with_secret: ClassVar[type[Model]]
    delivery: ClassVar[type[Delivery[Any]]]
    delivery_with_payload: ClassVar[type[Delivery[Any]]]
    endpoint_request: ClassVar[type[EndpointRequest]]
    create_request: type[CreateT]
    update_request: type[UpdateT]
    test_request: type[TestT]
    delivery_request: ClassVar[type[DeliveryRequest]]
    delivery_list_request: ClassVar[type[DeliveryListRequest[Any]]]

    @abstractmethod
    async def add(self, tx: Transaction, sealer: Sealer, request: CreateT) -> EndpointSecret:
        """Create an endpoint with a new secret. Raises `conflict` if the limit of endpoints is reached."""

    @abstractmethod
    async def change(self, tx: Transaction, request: UpdateT) -> None:
        """Change the endpoint as the request says. Raises `not_found`."""

    @abstractmethod
    async def send_test(self, tx: Transaction, endpoint: Record, request: TestT) -> UUID:
        """Queue a test delivery; returns its id."""

    async def changed(self, tx: Transaction, endpoint_id: UUID) -> None:
        """Called in the transaction of each change of an endpoint."""

    def fields(self, endpoint: Record) -> dict[str, Any]:
        """The fields of the models, from the columns."""
        return dict(endpoint)

    def operations(self) -> Operations[WebhookServices]:
        operations = Operations[WebhookServices]()
        reads = partial(operations.declare, access=Access.ADMINISTRATOR, scope=Scope.READ)
        changes = partial(operations.declare, access=Access.ADMINISTRATOR, scope=Scope.ADMIN)
        names, one = self.names, self.path + "/{id}"
        delivery = one + "/deliveries/{delivery_id}"

        endpoints_page, deliveries_page = _page_of(self.endpoint), _page_of(self.delivery)
        reads(*names.list_endpoints, Route.get(self.path), response=endpoints_page, columns=self.columns)(self._list)
        reads(*names.get, Route.get(one), request=self.endpoint_request, response=self.endpoint)(self._get)
        changes(
            *names.create,
            Route.post(self.path, status=201),
            request=self.create_request,
            response=self.endpoint_with_secret,
            positional=("url",),
            secret=True,
        )(self._create)
        changes(*names.update, Route.patch(one), request=self.update_request, response=self.endpoint)(self._update)
        changes(*names.delete, Route.delete(one), request=self.endpoint_request)(self._delete)
        changes(
            names.rotate,
            "Create a new secret, shown once; it replaces the old one at once, for retries too",
            Route.post(one + "/rotate"),
            request=self.endpoint_request,
            response=self.endpoint_with_secret,
            confirm=True,
            secret=True,
        )(self._rotate)
        changes(*names.test, Route.post(one + "/test"), request=self.test_request, response=self.delivery)(self._test)
        reads(
            *names.list_deliveries,
            Route.get(one + "/deliveries"),
            request=self.delivery_list_request,
            response=deliveries_page,
            columns=_DELIVERY_COLUMNS,
        )(self._list_deliveries)
        reads(
            *names.get_delivery,
            Route.get(delivery),
            request=self.delivery_request,
            response=self.delivery_with_payload,
        )(self._get_delivery)
        changes(
            names.replay,
            "Deliver again: the same event under the same delivery id, at once and with six attempts",
            Route.post(delivery + "/replay"),
            request=self.delivery_request,
            response=self.delivery,
        )(self._replay)
        return operations

    async def _list(self, context: Context[WebhookServices], request: PageRequest) -> Page[Model]:
        rows, total = await paginate(
            context.services.database,
            select=self.select,
            source="webhook_endpoints AS e",
            where=[contains(request.q, "e.url")],
            sortable={"created_at": "e.created_at", "url": "e.url"},
            default_sort="created_at",
            request=request,
            tie="e.id",
        )
        return _page_of(self.endpoint).of([self._shown(row) for row in rows], total, request)

    async def _get(self, context: Context[WebhookServices], request: EndpointRequest) -> Model:
        return self._shown(await self._endpoint(context.services.database, request.id))

    async def _create(self, context: Context[WebhookServices], request: CreateT) -> Model:
        await context.services.receivers.vet(request.url)

        async def work(tx: Transaction) -> Model:
            issued = await self.add(tx, context.services.sealer, request)
            await self.changed(tx, issued.id)
            row = await self._endpoint(tx, issued.id)
            await audit.record(tx, context.caller, _target(issued.id, row), {name: row[name] for name in self.audited})
            return self._shown(row, issued.secret)

        return await context.services.database.transact(work)

    async def _update(self, context: Context[WebhookServices], request: UpdateT) -> Model:
        if request.url is not None:
            await context.services.receivers.vet(request.url)

        async def work(tx: Transaction) -> Model:
            await self.change(tx, request)
            await self.changed(tx, request.id)
            row = await self._endpoint(tx, request.id)
            changed = request.model_dump(mode="json", exclude={"id", "url"}, exclude_none=True)
            await audit.record(tx, context.caller, _target(request.id, row), changed)
            return self._shown(row)

        return await context.services.database.transact(work)

    async def _delete(self, context: Context[WebhookServices], request: EndpointRequest) -> Empty:

        async def work(tx: Transaction) -> None:
            row = await endpoints.delete(tx, request.id)
            await self.changed(tx, request.id)
            await audit.record(tx, context.caller, _target(request.id, row))

        await context.services.database.transact(work)
        return Empty()

    async def _rotate(self, context: Context[WebhookServices], request: EndpointRequest) -> Model:

        async def work(tx: Transaction) -> Model:
            issued = await endpoints.rotate(tx, context.services.sealer, request.id)
            await self.changed(tx, request.id)
            row = await self._endpoint(tx, request.id)
            await audit.record(tx, context.caller, _target(request.id, row))
            return self._shown(row, issued.secret)

        return await context.services.database.transact(work)

    async def _test(self, context: Context[WebhookServices], request: TestT) -> Delivery[Any]:

        async def work(tx: Transaction) -> Delivery[Any]:
            row = await self._endpoint(tx, request.id)
            if not row["enabled"]:
                raise conflict("This webhook endpoint is not enabled.", hint="Enable it first.")
            delivery = await _delivery(tx, request.id, await self.send_test(tx, row, request))
            details = {"delivery": str(delivery["id"]), "event": delivery["event"]}
            await audit.record(tx, context.caller, _target(request.id, row), details)
            return self.delivery(**dict(delivery))

        return await context.services.database.transact(work)

    async def _list_deliveries(
        self, context: Context[WebhookServices], request: DeliveryListRequest[Any]
    ) -> Page[Delivery[Any]]:
        database = context.services.database
        await self._endpoint(database, request.id)
        rows, total = await paginate(
            database,
            select=_SELECT_DELIVERIES,
            source=_DELIVERIES,
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
        return _page_of(self.delivery).of([self.delivery(**dict(row)) for row in rows], total, request)

    async def _get_delivery(self, context: Context[WebhookServices], request: DeliveryRequest) -> Delivery[Any]:
        database = context.services.database
        row = await _delivery(database, request.id, request.delivery_id)
        body: bytes = await database.fetchval("SELECT body FROM webhook_events WHERE id = $1", row["event_id"])
        return self.delivery_with_payload(**{**dict(row), "payload": body.decode()})

    async def _replay(self, context: Context[WebhookServices], request: DeliveryRequest) -> Delivery[Any]:

        async def work(tx: Transaction) -> Delivery[Any]:
            row = await self._endpoint(tx, request.id)
            await deliveries.replay(tx, request.id, request.delivery_id, utc_now())
            await audit.record(tx, context.caller, _target(request.id, row), {"delivery": str(request.delivery_id)})
            return self.delivery(**dict(await _delivery(tx, request.id, request.delivery_id)))

        return await context.services.database.transact(work)

    def _shown(self, row: Record, secret: str | None = None) -> Model:
        if secret is None:
            return self.endpoint(**self.fields(row))
        return self.endpoint_with_secret(**self.fields(row) | {"secret": secret})

    async def _endpoint(self, queryable: Queryable, endpoint_id: UUID) -> Record:
        row = await queryable.fetchrow(f"{self.select} WHERE e.id = $1", endpoint_id)
        if row is None:
            raise endpoints.no_such_endpoint()
        return row


async def _delivery(queryable: Queryable, endpoint_id: UUID, delivery_id: UUID) -> Record:
    row = await queryable.fetchrow(
        f"{_SELECT_DELIVERIES} WHERE d.id = $1 AND d.endpoint_id = $2", delivery_id, endpoint_id
    )
    if row is None:
        raise deliveries.no_such_delivery()
    return row


def _target(endpoint_id: UUID, row: Record) -> Target:
    """The audit's target for an endpoint, with only the host of its URL: the path may contain a key of the receiver's,
    and the audit is kept for years."""
    return Target("webhook", endpoint_id, ReceiverUrl.parse(row["url"]).host)


def _page_of(model: type[ModelT]) -> type[Page[ModelT]]:
    """The type of a page of this model. The model is known only at run time, so type checkers cannot express it."""
    page: Any = Page
    parametrized: type[Page[ModelT]] = page[model]
    return parametrized
