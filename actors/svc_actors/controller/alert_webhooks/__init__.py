"""Alerts to operators by signed webhooks: the receivers, and their notifications."""
