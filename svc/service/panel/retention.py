"""Removes with time: old records, ended jobs, abandoned uploads."""

from __future__ import annotations

from functools import partial
from typing import Final

from svc.identity.retention import remove_old_records
from svc.identity.settings import read_settings
from svc.panel.config import PanelConfig
from svc.panel.loops import PanelLoops
from svc_actors.panel.files import Uploads
from svc_actors.panel.jobs.retention import REMOVAL_PERIOD, forget_old_jobs
from svc_actors.store import Database, EventLog

RECORDS_SECONDS: Final = 3600.0
UPLOADS_SECONDS: Final = 3600.0


def start_retention(
    loops: PanelLoops, config: PanelConfig, database: Database, events: EventLog, uploads: Uploads
) -> None:
    loops.repeat("retention", RECORDS_SECONDS, partial(_remove_old_records, config, database, events))
    loops.repeat("removal of old jobs", REMOVAL_PERIOD, partial(forget_old_jobs, database))
    loops.repeat("removal of abandoned uploads", UPLOADS_SECONDS, uploads.remove_abandoned)


async def _remove_old_records(config: PanelConfig, database: Database, events: EventLog) -> None:
    await remove_old_records(database, events, config.data_dir, await read_settings(database))
