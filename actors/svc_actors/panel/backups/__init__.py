"""Backups of sites: restic repositories, their contents, and how these are restored to a site (docs/site-backups.md).

Why: docs/decisions/0051-backups-of-sites.md.
"""

from svc_actors.panel.backups.backups import ROUND_SECONDS, BackupLoop, Backups
from svc_actors.panel.backups.configuration_changes import Allowed
from svc_actors.panel.backups.configuration_restore import ConfigurationRestore
from svc_actors.panel.backups.databases import DatabaseBackups
from svc_actors.panel.backups.places import Places
from svc_actors.panel.backups.tools import Tools

__all__ = [
    "ROUND_SECONDS",
    "Allowed",
    "BackupLoop",
    "Backups",
    "ConfigurationRestore",
    "DatabaseBackups",
    "Places",
    "Tools",
]
