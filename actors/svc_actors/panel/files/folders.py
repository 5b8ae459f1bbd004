"""Folder and account of a site's files."""

from __future__ import annotations

from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus
from svc_common.errors import conflict
from svc_webhost.confined_client import SiteFolder
from svc_webhost.folders import HostFolders


def site_folder(folders: HostFolders, site: SiteRow) -> SiteFolder:
    """Raises conflict while the site has no files: it is being created, or deleted."""
    if site.status in (SiteStatus.CREATING, SiteStatus.DELETING):
        raise conflict(f"The site is {site.status.value}; its files cannot be used meanwhile.")
    return SiteFolder(folders.sites / site.account.name, site.account.uid, site.account.uid)
