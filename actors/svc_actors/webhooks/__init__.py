"""Signed webhooks of any service: endpoints, what waits for them, and its delivery (docs/webhooks.md)."""
