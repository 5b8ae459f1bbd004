"""The panel's webhooks: its events, written with what they tell of, and the endpoints that have subscribed to them."""

from svc_actors.panel.webhooks.events import WebhookEvent
from svc_actors.panel.webhooks.outbox import emit
from svc_actors.webhooks.payload import Scalar, Subject

__all__ = ["Scalar", "Subject", "WebhookEvent", "emit"]
