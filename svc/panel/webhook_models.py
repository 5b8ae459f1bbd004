"""The API's models of webhooks. Only `WebhookSecret` contains a secret."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field, WithJsonSchema

from svc.identity.webhooks import Url
from svc.registry.operation import Model, Request
from svc.registry.paging import PageRequest
from svc_actors.panel.webhooks.endpoints import EVERY_EVENT
from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.store import Record
from svc_actors.webhooks.delivery_states import DeliveryStatus

SELECT_ENDPOINTS: Final = """
SELECT e.id, e.url, e.events, e.enabled, e.last_four, e.created_at, e.rotated_at,
       (SELECT count(*) FROM webhook_deliveries AS d
        WHERE d.endpoint_id = e.id AND d.next_attempt_at IS NOT NULL) AS waiting,
       (SELECT max(d.attempted_at) FROM webhook_deliveries AS d
        WHERE d.endpoint_id = e.id AND d.status = 'delivered') AS delivered_at
FROM webhook_endpoints AS e"""


class WebhookEndpoint(Model):
    """`events` are the names subscribed to, all thirteen for `*`; `every_event` tells the two apart. `waiting`:
    deliveries that are pending or retrying. `delivered_at`: when the receiver last took one of those that are kept."""

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

    @classmethod
    def of(cls, row: Record) -> WebhookEndpoint:
        return cls(**_endpoint_fields(row))


class WebhookSecret(WebhookEndpoint):
    """`secret` is shown this once."""

    secret: str

    @classmethod
    def with_secret(cls, row: Record, secret: str) -> WebhookSecret:
        return cls(**_endpoint_fields(row), secret=secret)


def _endpoint_fields(row: Record) -> dict[str, object]:
    fields = dict(row)
    every_event = fields["events"] == [EVERY_EVENT]
    return fields | {
        "events": list(WebhookEvent) if every_event else fields["events"],
        "every_event": every_event,
        "secret_last_four": fields.pop("last_four"),
    }


class WebhookDelivery(Model):
    """`response_status` and `error` are of the last attempt: what the receiver answered, or why it did not."""

    id: UUID
    endpoint_id: UUID
    event_id: UUID
    event: WebhookEvent
    status: DeliveryStatus
    attempts: int
    created_at: datetime
    attempted_at: datetime | None
    next_attempt_at: datetime | None
    duration_ms: int | None
    response_status: int | None
    error: str | None

    @classmethod
    def of(cls, row: Record) -> WebhookDelivery:
        return cls(**dict(row))


class WebhookDeliveryDetail(WebhookDelivery):
    """`payload` is the body as it is sent."""

    payload: str


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Subscribed = Annotated[
    WebhookEvent | Literal["*"],
    WithJsonSchema({"type": "string", "enum": [EVERY_EVENT, *WebhookEvent]}),
]
Subscription = Annotated[
    list[_Subscribed],
    Field(min_length=1, max_length=14, description="Names of events, or * for all."),
    BeforeValidator(_one_or_many),
]


class WebhookCreateRequest(Request):
    url: Url
    events: Subscription
    enabled: bool = True


class WebhookRequest(Request):
    id: UUID


class WebhookUpdateRequest(WebhookRequest):
    """What is left out stays as it is."""

    url: Url | None = None
    events: Subscription | None = None
    enabled: bool | None = None


class WebhookTestRequest(WebhookRequest):
    """`event`: left out, update.installed where it is subscribed to, else the first of the subscription."""

    event: WebhookEvent | None = None


class DeliveryListRequest(PageRequest):
    id: UUID
    status: DeliveryStatus | None = None
    event: WebhookEvent | None = None


class DeliveryRequest(WebhookRequest):
    delivery_id: UUID
