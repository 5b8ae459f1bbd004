"""The panel's background loops, by their names in alerts and in the log."""

from __future__ import annotations

from typing import Literal

from svc_actors.panel.backups import BackupLoop
from svc_actors.store import Loops, ServiceLoop

PanelLoop = (
    ServiceLoop
    | BackupLoop
    | Literal[
        "access by SFTP",
        "applications of sites",
        "bound on visitors by address",
        "certificate of the panel",
        "certificates of sites",
        "cron of WordPress",
        "databases to resume",
        "disk use of sites",
        "handovers of sites",
        "health",
        "jobs",
        "keeper of programs",
        "logs of sites",
        "manifests of this server",
        "memory of database sessions (mariadb)",
        "memory of database sessions (postgresql)",
        "ports of the panel",
        "programs of sites",
        "programs that end by themselves",
        "pushes to undo",
        "releases of the panel",
        "removal of abandoned uploads",
        "removal of old exports",
        "removal of old imports",
        "removal of old jobs",
        "schedules",
        "sites to resume",
        "sites without a record",
        "traffic of sites",
        "trials of releases",
        "updates of packages",
        "web server",
        "zones",
    ]
)
PanelLoops = Loops[PanelLoop]
