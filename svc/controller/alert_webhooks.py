"""Alert webhooks: which alerts go to which URL, and the log of deliveries."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.identity.webhooks import (
    ENDPOINT,
    CreateRequest,
    Delivery,
    DeliveryListRequest,
    DeliveryRequest,
    EndpointRequest,
    Names,
    UpdateRequest,
    Webhooks,
)
from svc.registry.operation import Model
from svc_actors.alerts import Severity
from svc_actors.controller import alert_webhooks
from svc_actors.controller.alert_webhooks import AlertEvent, tell_test
from svc_actors.sealing import Sealer
from svc_actors.store import Record, Transaction
from svc_actors.webhooks.endpoints import EndpointSecret


class AlertWebhook(Model):
    """`least`: the least severity of the alerts that are sent to it. `waiting`: deliveries that are pending or
    retrying. `delivered_at`: the last successful delivery among those that are still in the log."""

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
    """`secret` is shown only once."""

    secret: str


class AlertDelivery(Delivery[AlertEvent]):
    """`response_status` and `error` are of the last attempt: what the receiver answered, or why it did not."""


class AlertDeliveryDetail(AlertDelivery):
    """`payload` is the body as it is sent."""

    payload: str


class AlertWebhookCreate(CreateRequest):
    least: Severity = Severity.CRITICAL


class AlertWebhookRequest(EndpointRequest):
    pass


class AlertWebhookUpdate(UpdateRequest):
    """Fields left out stay as they are."""

    least: Severity | None = None
    enabled: bool | None = None


class AlertDeliveryList(DeliveryListRequest[AlertEvent]):
    pass


class AlertDeliveryRequest(DeliveryRequest):
    pass


class AlertWebhooks(Webhooks[AlertWebhookCreate, AlertWebhookUpdate, AlertWebhookRequest]):
    path = "/alerts/webhooks"
    names = Names(
        list_endpoints=("alert.webhooks", "The webhook receivers of alerts"),
        get=("alert.webhook", "A receiver of alerts"),
        create=(
            "alert.create_webhook",
            "Create a receiver that alerts are delivered to, an https:// URL; its signing secret is shown once",
        ),
        update=("alert.update_webhook", "Change a receiver's URL or least severity, or enable or disable it"),
        delete=("alert.delete_webhook", "Delete a receiver of alerts with its deliveries, pending ones included"),
        rotate="alert.rotate_webhook",
        test=("alert.test_webhook", "Send a test delivery, about no alert, the way all deliveries go"),
        list_deliveries=("alert.deliveries", "Deliveries to a receiver of alerts and their outcomes, newest first"),
        get_delivery=("alert.delivery", "One delivery of an alert, with the body as it is sent"),
        replay="alert.replay",
    )
    columns = ("url", "least", "enabled", "waiting", "delivered=delivered_at", "id")
    select = f"SELECT e.least, {ENDPOINT} FROM webhook_endpoints AS e"
    audited = ("least",)

    endpoint = AlertWebhook
    endpoint_with_secret = AlertWebhookSecret
    delivery = AlertDelivery
    delivery_with_payload = AlertDeliveryDetail
    endpoint_request = AlertWebhookRequest
    create_request = AlertWebhookCreate
    update_request = AlertWebhookUpdate
    test_request = AlertWebhookRequest
    delivery_request = AlertDeliveryRequest
    delivery_list_request = AlertDeliveryList

    async def add(self, tx: Transaction, sealer: Sealer, request: AlertWebhookCreate) -> EndpointSecret:
        return await alert_webhooks.create(tx, sealer, request.url, request.least)

    async def change(self, tx: Transaction, request: AlertWebhookUpdate) -> None:
        await alert_webhooks.update(tx, request.id, url=request.url, least=request.least, enabled=request.enabled)

    async def send_test(self, tx: Transaction, endpoint: Record, request: AlertWebhookRequest) -> UUID:
        return await tell_test(tx, request.id)


operations = AlertWebhooks().operations()
