"""The folder of an import in each of its sites: unpacked files, dumps, certificates and passwords until they are used.

No visitor may get these: a failed or cancelled job removes the folder, and an import is deleted only after its folders
are gone.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.files import site_folder
from svc_actors.panel.imports.records import sites_of
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Queryable
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.archives.placing import ASIDE
from svc_webhost.confined.protocol import Delete
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders

STAGED: Final = f"{ASIDE}/files"
"""The folder of the unpacked files; once these are placed, it contains the previous document root."""
# Seconds; removing the tree of a large site takes longest.
_SECONDS: Final = 600.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.imports")


async def remove_staged(files: ConfinedFiles, folders: HostFolders, site: SiteRow, path: str = ASIDE) -> None:
    try:
        await files.ask(site_folder(folders, site), Delete([path]), seconds=_SECONDS)
    except ServiceError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise


async def remove_all_staged(queryable: Queryable, files: ConfinedFiles, folders: HostFolders, import_id: UUID) -> None:
    """Remove the folder from all sites of the import. If it cannot be removed from one, the others are still done, and
    ServiceError is raised."""
    problem: ServiceError | None = None
    for site_id in (await sites_of(queryable, import_id)).values():
        site = await read_site(queryable, site_id)
        if site is None or site.status in (SiteStatus.CREATING, SiteStatus.DELETING):
            continue
        if not await trio.Path(site_folder(folders, site).path).exists():
            continue
        try:
            await remove_staged(files, folders, site)
        except ServiceError as error:
            problem = problem or error
    if problem is not None:
        raise problem


async def try_remove_all_staged(
    queryable: Queryable, files: ConfinedFiles, folders: HostFolders, import_id: UUID
) -> bool:
    """As `remove_all_staged`, but logs the problem instead. Returns whether nothing is left."""
    try:
        await remove_all_staged(queryable, files, folders, import_id)
    except ServiceError as error:
        log.warning("import.staged_files_left", import_id=str(import_id), error=error.message)
        return False
    return True
