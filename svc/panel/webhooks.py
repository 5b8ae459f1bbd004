"""Webhooks: the URLs that get the server's events, and the log of deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field, WithJsonSchema

from svc.identity import webhooks
from svc.identity.webhooks import (
    ENDPOINT,
    CreateRequest,
    Delivery,
    EndpointRequest,
    Names,
    UpdateRequest,
    Webhooks,
)
from svc.registry.operation import Model
from svc_actors.panel import webhooks as endpoints
from svc_actors.panel.webhooks import EVERY_EVENT, WebhookEvent, emit_to
from svc_actors.sealing import Sealer
from svc_actors.store import Record, Transaction
from svc_actors.webhooks.endpoints import EndpointSecret


class WebhookEndpoint(Model):
    """`events`: the subscribed names, all thirteen for `*`; `every_event` is true only for `*`, which includes events
    of later releases. `waiting`: deliveries that are pending or retrying. `delivered_at`: the last successful delivery
    among those that are still in the log."""

    id: UUID
    url: str
    events: list[WebhookEvent]
    every_event: bool
    enabled: bool
    secret_last_four: str
    waiting: int
    delivered_at: datetime | None
    created_at: datetime
    rotated_at: datetime | None


class WebhookSecret(WebhookEndpoint):
    """`secret` is shown only once."""

    secret: str


class WebhookDelivery(Delivery[WebhookEvent]):
    """`response_status` and `error` are of the last attempt: what the receiver answered, or why it did not."""


class WebhookDeliveryDetail(WebhookDelivery):
    """`payload` is the body as it is sent."""

    payload: str


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Name = Annotated[
    WebhookEvent | Literal["*"],
    WithJsonSchema({"type": "string", "enum": [EVERY_EVENT, *WebhookEvent]}),
]
Subscription = Annotated[
    list[_Name],
    Field(min_length=1, max_length=14, description="Names of events, or * for all."),
    BeforeValidator(_one_or_many),
]


class WebhookCreateRequest(CreateRequest):
    events: Subscription
    enabled: bool = True


class WebhookRequest(EndpointRequest):
    pass


class WebhookUpdateRequest(UpdateRequest):
    """Fields left out stay as they are."""

    events: Subscription | None = None
    enabled: bool | None = None


class WebhookTestRequest(EndpointRequest):
    """`event`: by default update.installed if it is subscribed to, else the first event of the subscription."""

    event: WebhookEvent | None = None


class DeliveryListRequest(webhooks.DeliveryListRequest[WebhookEvent]):
    pass


class DeliveryRequest(webhooks.DeliveryRequest):
    pass


class PanelWebhooks(Webhooks[WebhookCreateRequest, WebhookUpdateRequest, WebhookTestRequest]):
    path = "/webhooks"
    names = Names(
        list_endpoints=("webhook.list", "The endpoints that events are delivered to"),
        get=("webhook.get", "One endpoint"),
        create=(
            "webhook.create",
            "Create an endpoint that events are delivered to, an https:// URL; its signing secret is shown once",
        ),
        update=(
            "webhook.update",
            "Change an endpoint's URL or events, or enable or disable it; deliveries to a disabled one wait",
        ),
        delete=("webhook.delete", "Delete an endpoint with its deliveries, pending ones included"),
        rotate="webhook.rotate",
        test=("webhook.test", "Send a test delivery, marked by `test` in its data, the way all deliveries go"),
        list_deliveries=("webhook.deliveries", "Deliveries to an endpoint and their outcomes, newest first"),
        get_delivery=("webhook.delivery", "One delivery, with the body as it is sent"),
        replay="webhook.replay",
    )
    columns = ("url", "enabled", "waiting", "delivered=delivered_at", "ends in=secret_last_four", "id")
    select = f"SELECT e.events, {ENDPOINT} FROM webhook_endpoints AS e"
    audited = ("events", "enabled")

    endpoint = WebhookEndpoint
    endpoint_with_secret = WebhookSecret
    delivery = WebhookDelivery
    delivery_with_payload = WebhookDeliveryDetail
    endpoint_request = WebhookRequest
    create_request = WebhookCreateRequest
    update_request = WebhookUpdateRequest
    test_request = WebhookTestRequest
    delivery_request = DeliveryRequest
    delivery_list_request = DeliveryListRequest

    async def add(self, tx: Transaction, sealer: Sealer, request: WebhookCreateRequest) -> EndpointSecret:
        return await endpoints.create(tx, sealer, request.url, request.events, enabled=request.enabled)

    async def change(self, tx: Transaction, request: WebhookUpdateRequest) -> None:
        await endpoints.update(tx, request.id, url=request.url, names=request.events, enabled=request.enabled)

    async def changed(self, tx: Transaction, endpoint_id: UUID) -> None:
        await endpoints.changed(tx, endpoint_id)

    async def send_test(self, tx: Transaction, endpoint: Record, request: WebhookTestRequest) -> UUID:
        event = request.event or _tested_with(endpoint["events"])
        return await emit_to(tx, request.id, event, data={"test": True})

    def fields(self, endpoint: Record) -> dict[str, Any]:
        every_event = endpoint["events"] == [EVERY_EVENT]
        events = list(WebhookEvent) if every_event else endpoint["events"]
        return dict(endpoint) | {"events": events, "every_event": every_event}


def _tested_with(events: list[str]) -> WebhookEvent:
    """The event of a test delivery that does the least harm if the receiver ignores `test`. update.installed concerns
    no customer, so the receiver creates, suspends or deletes nothing."""
    if WebhookEvent.UPDATE_INSTALLED in events or events == [EVERY_EVENT]:
        return WebhookEvent.UPDATE_INSTALLED
    return WebhookEvent(events[0])


operations = PanelWebhooks().operations()
