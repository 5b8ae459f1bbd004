"""A site's files: their folder, and the jobs that pack and unpack archives, which can take long."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database
from svc_common.errors import conflict, not_found
from svc_webhost.confined.protocol import Compress, Extract
from svc_webhost.confined_client import ConfinedFiles, SiteFolder
from svc_webhost.folders import HostFolders

EXTRACT: Final = "file.extract"
COMPRESS: Final = "file.compress"
SECONDS: Final = 3600.0


def site_folder(folders: HostFolders, site: SiteRow) -> SiteFolder:
    """Raises conflict while the site has no files: it is being created, or deleted."""
    if site.status in (SiteStatus.CREATING, SiteStatus.DELETING):
        raise conflict(f"The site is {site.status.value}; its files cannot be used meanwhile.")
    return SiteFolder(folders.sites / site.account.name, site.account.uid, site.account.uid)


class FileWork:
    """The work of both kinds. The site is looked up when the job runs, as it may have changed since it was queued."""

    def __init__(self, database: Database, files: ConfinedFiles, folders: HostFolders) -> None:
        self._database = database
        self._files = files
        self._folders = folders

    async def unpack(self, run: JobRun) -> None:
        site = await self._site(run)
        most = await require_disk_room(self._database, site.id, 0)
        parameters = run.parameters
        encoding = parameters.get("encoding")
        request = Extract(parameters["path"], parameters["to"], parameters["replace"], most, encoding)
        answer = await self._files.ask(site_folder(self._folders, site), request, seconds=SECONDS)
        await run.log(f"{answer.result['entries']:,} entries of {request.path} were unpacked.")

    async def pack(self, run: JobRun) -> None:
        site = await self._site(run)
        most = await require_disk_room(self._database, site.id, 0)
        request = Compress(list(run.parameters["paths"]), run.parameters["to"], run.parameters["format"], most)
        answer = await self._files.ask(site_folder(self._folders, site), request, seconds=SECONDS)
        await run.log(f"{request.to} was created and has {answer.result['size']:,} bytes.")

    async def _site(self, run: JobRun) -> SiteRow:
        site_id: UUID | None = run.job.site_id
        site = None if site_id is None else await read_site(self._database, site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        return site
