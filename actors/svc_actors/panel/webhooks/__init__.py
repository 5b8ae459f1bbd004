"""Signed webhooks: events, written with what they tell of, and their delivery to the endpoints that subscribed."""

from svc_actors.panel.webhooks.events import Scalar, Subject, WebhookEvent
from svc_actors.panel.webhooks.outbox import emit

__all__ = ["Scalar", "Subject", "WebhookEvent", "emit"]
