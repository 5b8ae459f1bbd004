"""What is removed when it has become old, by the settings `keep_...`; every hour, in batches."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from svc.identity.sessions import remove_ended_sessions
from svc.identity.settings import read_settings
from svc_actors.controller.retention import (
    remove_deleted_machines,
    remove_old_samples,
    remove_old_tasks,
    remove_old_traffic,
)
from svc_actors.mail.queue import remove_ended_mails
from svc_actors.store import Database, EventLog, LoopAlert, Retention, keep_repeating
from svc_actors.store.audit_archive import archive_audit

PERIOD: Final = 3600.0
_FIRST: Final = 60.0
"""Seconds after the start: tasks resume and nodes connect first."""

log = structlog.get_logger("svc.retention")


async def keep_retention(database: Database, events: EventLog, data_dir: Path, alert: LoopAlert) -> None:
    """Remove what is older than the settings say, until cancelled."""
    work = partial(remove_what_is_old, database, events, data_dir)
    await keep_repeating("retention", PERIOD, work, alert, first_after=_FIRST)


async def remove_what_is_old(database: Database, events: EventLog, data_dir: Path) -> None:
    settings = await read_settings(database)
    events.retain(Retention(age=timedelta(days=settings.keep_event_days)))
    removed = {
        "tasks": await remove_old_tasks(database, timedelta(days=settings.keep_task_days)),
        "samples": await remove_old_samples(database, timedelta(days=settings.keep_sample_days)),
        "sessions": await remove_ended_sessions(database, timedelta(days=settings.keep_session_days)),
        "mails": await remove_ended_mails(database, timedelta(days=settings.keep_mail_days)),
        "traffic": await remove_old_traffic(database, settings.keep_traffic_months),
        "machines": await remove_deleted_machines(database, timedelta(days=settings.keep_deleted_days)),
        "audit": await archive_audit(database, data_dir / "audit", timedelta(days=settings.keep_audit_days)),
    }
    if any(removed.values()):
        log.info("retention.removed", **removed)
