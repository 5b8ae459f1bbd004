"""Removes old records, by the settings `keep_...`: every hour, in batches."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from svc.controller.settings import ControllerSettings
from svc.identity.retention import remove_old_records
from svc.identity.settings import read_as
from svc_actors.controller.retention import (
    remove_deleted_machines,
    remove_old_samples,
    remove_old_tasks,
    remove_old_traffic,
)
from svc_actors.store import Database, EventLog, Loops, ServiceLoop

PERIOD: Final = 3600.0
_FIRST: Final = 60.0
"""Seconds after the start: tasks resume and nodes connect first."""

log = structlog.get_logger("svc.retention")


def add_retention(loops: Loops[ServiceLoop], database: Database, events: EventLog, data_dir: Path) -> None:
    """Remove what is older than the settings say."""
    work = partial(remove_expired, database, events, data_dir)
    loops.repeat("retention", PERIOD, work, first_after=_FIRST)


async def remove_expired(database: Database, events: EventLog, data_dir: Path) -> None:
    settings = await read_as(ControllerSettings, database)
    removed = {
        "tasks": await remove_old_tasks(database, timedelta(days=settings.keep_task_days)),
        "samples": await remove_old_samples(database, timedelta(days=settings.keep_sample_days)),
        "traffic": await remove_old_traffic(database, settings.keep_traffic_months),
        "machines": await remove_deleted_machines(database, timedelta(days=settings.keep_deleted_days)),
        **await remove_old_records(database, events, data_dir, settings),
    }
    if any(removed.values()):
        log.info("retention.removed", **removed)
