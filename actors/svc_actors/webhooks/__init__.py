"""Signed webhooks of any service: endpoints, the outbox and its delivery (docs/webhooks.md)."""
