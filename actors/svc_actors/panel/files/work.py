"""Archives packed and unpacked as jobs: what takes as long as there are files."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.errors import not_found
from svc_actors.host.confined.protocol import Compress, Extract
from svc_actors.host.confined_client import ConfinedFiles, SiteFolder
from svc_actors.host.folders import HostFolders
from svc_actors.panel.files.folders import site_folder
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import read_site
from svc_actors.store import Database

EXTRACT: Final = "file.extract"
COMPRESS: Final = "file.compress"
SECONDS: Final = 3600.0


class FileWork:
    """The work of both kinds. The site is looked up when the job runs: much may have happened since it was queued."""

    def __init__(self, database: Database, files: ConfinedFiles, folders: HostFolders) -> None:
        self._database = database
        self._files = files
        self._folders = folders

    async def unpack(self, run: JobRun) -> None:
        request = Extract(run.parameters["path"], run.parameters["to"], run.parameters["replace"])
        answer = await self._files.ask(await self._folder(run), request, seconds=SECONDS)
        await run.log(f"{answer.result['entries']:,} entries of {request.path} were unpacked.")

    async def pack(self, run: JobRun) -> None:
        request = Compress(list(run.parameters["paths"]), run.parameters["to"], run.parameters["format"])
        answer = await self._files.ask(await self._folder(run), request, seconds=SECONDS)
        await run.log(f"{request.to} was made and has {answer.result['size']:,} bytes.")

    async def _folder(self, run: JobRun) -> SiteFolder:
        site_id: UUID | None = run.job.site_id
        site = None if site_id is None else await read_site(self._database, site_id)
        if site is None:
            raise not_found("The site is not there any more.")
        return site_folder(self._folders, site)
