"""Alerts to operators by signed webhooks: the receivers, and what they are told."""
