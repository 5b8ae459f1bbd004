"""Removes old records of every service, by the settings `keep_...`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from svc.identity.sessions import remove_ended_sessions
from svc.identity.settings import Settings
from svc_actors.mail.queue import remove_ended_mails
from svc_actors.store import Database, EventLog, Retention
from svc_actors.store.audit_archive import archive_audit


async def remove_old_records(
    database: Database, events: EventLog, data_dir: Path, settings: Settings
) -> dict[str, int]:
    """Remove records older than the settings say; returns how many of each kind were removed. Audit rows are written to
    files below `data_dir` before they are removed."""
    events.retain(Retention(age=timedelta(days=settings.keep_event_days)))
    return {
        "sessions": await remove_ended_sessions(database, timedelta(days=settings.keep_session_days)),
        "mails": await remove_ended_mails(database, timedelta(days=settings.keep_mail_days)),
        "audit": await archive_audit(database, data_dir / "audit", timedelta(days=settings.keep_audit_days)),
    }
