"""Events of the panel's webhooks (hosting-panel-api.md, Events)."""

from __future__ import annotations

from enum import StrEnum


class WebhookEvent(StrEnum):
    """All events; a subscription to `*` stands for all of them."""

    BACKUP_COMPLETED = "backup.completed"
    BACKUP_FAILED = "backup.failed"
    BACKUP_REMOTE_FAILED = "backup.remote_failed"
    SSL_ISSUED = "ssl.issued"
    SSL_FAILED = "ssl.failed"
    HEALTH_CRITICAL = "health.critical"
    SITE_CREATED = "site.created"
    SITE_SUSPENDED = "site.suspended"
    SITE_UNSUSPENDED = "site.unsuspended"
    UPDATE_INSTALLED = "update.installed"
    JOB_FAILED = "job.failed"
    MIGRATION_COMPLETED = "migration.completed"
    RECOVERY_COMPLETED = "recovery.completed"
