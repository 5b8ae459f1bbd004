"""The panel's webhooks: events, written in the transaction of the change that they report, and the endpoints that
subscribe to them."""

from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.panel.webhooks.outbox import emit
from svc_actors.webhooks.payload import Scalar, Subject

__all__ = ["Scalar", "Subject", "WebhookEvent", "emit"]
