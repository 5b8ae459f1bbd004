"""The work of a restoration: content is fetched into a folder next to the site's, compared with the manifest, and only
then moved into the site.

Until it is verified, restored content lies in a folder that only root can read, so a failure before that leaves the
site as it was. A whole site is then exchanged entry by entry (`tree_switch`), which an interruption undoes at the next
start; the site's own account moves a single file or folder into place, in one step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.configuration import FILE, Configuration, parsed_configuration
from svc_actors.panel.backups.configuration_restore import ConfigurationRestore
from svc_actors.panel.backups.databases import FOLDER, DatabaseDump
from svc_actors.panel.backups.places import Places
from svc_actors.panel.backups.records import USUAL_PARTS, BackupPart, BackupRow, BackupStatus, read_backup
from svc_actors.panel.backups.repositories import RepositoryRow, read_repository
from svc_actors.panel.backups.tools import DUMPED, Tools
from svc_actors.panel.files import site_folder
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_common.errors import ServiceError, conflict, not_found, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.confined.protocol import TEMPORARY, FreeSpace, PlaceRestored
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.restic import Verified
from svc_webhost.restic.driver import CONTENT, MANIFEST_PATH, TREE
from svc_webhost.restic.manifest import LEFT_OUT, size_below
from svc_webhost.tree_switch import move_restored, switch

NEW: Final = "new"
_SAID: Final = {
    BackupPart.CONFIGURATION: f"{CONTENT}/{FILE}",
    BackupPart.FILES: MANIFEST_PATH,
    BackupPart.DATABASES: DUMPED,
}
"""The file of a backup that describes each part."""
_TOLD = 20
"""The most differences that the log names."""
_PLACE_SECONDS = 600.0


class RestoreWork:
    """The work of `backup.restore`. The job belongs to the site to which the backup is restored, which need not be the
    backup's own."""

    def __init__(
        self, tools: Tools, files: ConfinedFiles, configuration: ConfigurationRestore, accounts: Accounts
    ) -> None:
        self._tools = tools
        self._accounts = accounts
        self._configuration = configuration
        self._files = files
        self._places: Places = tools.places

    async def plan(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, backup, repository = await self._of(run)
            site_folder(self._places.folders, site)
            await self._tools.put_back(run, site)
            await self._tools.open_for_restore(run, repository, backup.id)
            await trio.to_thread.run_sync(self._places.make_staging, run.id)
            await run.log(f"{site.domain} is restored to {backup.created_at:%Y-%m-%d %H:%M} UTC.")

    async def reserve_disk(self, run: JobRun) -> None:
        """Fetches the backup's descriptions first, because they contain the sizes of the parts to restore."""
        async with self._tools.cleaned_on_failure(run):
            site, _, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            await self._tools.fetch_said(run, local, *(_SAID[part] for part in self._parts(run)))
            await self._tools.require_room(
                await self._needed(run, site),
                what="The restoration",
                left="the site was not changed",
                hint="Free some space, or restore single files.",
            )

    async def fetch(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            _, _, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            path, parts = self._path(run), self._parts(run)
            wanted = []
            if BackupPart.FILES in parts:
                wanted.append(TREE if path is None else f"{TREE}/{path}")
            if BackupPart.DATABASES in parts:
                wanted += [f"{CONTENT}/{FOLDER}/{dump.file}" for dump in await self._wanted(run)]
            if wanted:
                new = self._places.staging(run.id) / NEW
                await self._tools.fetch(run, local, self._tools.snapshot_ids(run).tree, new, *wanted)

    async def verify(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            if BackupPart.FILES not in self._parts(run):
                return
            verified: Verified = await self._tools.restic.verify(
                run.program,
                self._tree(run),
                self._tools.listed(run),
                self._path(run) or "",
                site.account.uid,
                site.account.uid,
            )
            if verified.wrong:
                await run.log(*(f"differs: {how}" for how in verified.named[:_TOLD]))
                raise unavailable(
                    f"{verified.wrong:,} entries differ from what was backed up ({verified.named[0]}); "
                    "the site was not changed.",
                    hint="The job's log names them. Restore another backup.",
                )
            await run.log(f"{verified.entries:,} entries match the backup, byte for byte.")

    async def load_databases(self, run: JobRun) -> None:
        """If the core is killed during this step, a MariaDB database stays partly loaded: the next core puts its former
        content back (`PutBackWork`)."""
        async with self._tools.cleaned_on_failure(run):
            if BackupPart.DATABASES not in self._parts(run):
                return
            site, _, _ = await self._of(run)
            content = self._places.staging(run.id) / NEW / CONTENT
            wanted = await self._wanted(run)
            await self._tools.databases.verify_fetched(content, wanted)
            await self._tools.databases.load(run, site, content, wanted, self._places.aside(run.id))

    async def switch(self, run: JobRun) -> None:
        """Until this step has ended, a failure puts files and databases back; afterwards both stay, whatever comes."""
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            placed = None
            try:
                if BackupPart.FILES in self._parts(run):
                    if BackupPart.CONFIGURATION in self._parts(run):
                        await self._configuration.close(site, await self._configuration_of(run))
                    placed = await self._place(run, site)
            except (OSError, ServiceError) as error:
                await self._tools.databases.put_back(run, site, self._places.aside(run.id))
                message = f"The files could not be put into place: {error}; the site has its previous state again."
                if isinstance(error, ServiceError):
                    raise ServiceError(error.code, message, hint=error.hint) from error
                raise unavailable(message) from error
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._places.drop_aside, run.id)
            if placed is not None:
                await run.log(placed)

    async def configure(self, run: JobRun) -> None:
        """The last step, because its failure undoes nothing: the failure is reported, and a new order may try again."""
        async with self._tools.cleaned_on_failure(run):
            if BackupPart.CONFIGURATION in self._parts(run):
                site, _, _ = await self._of(run)
                await self._configuration.restore(run, site, await self._configuration_of(run))
        await self._tools.clean(run.id)

    async def _place(self, run: JobRun, site: SiteRow) -> str:
        """Put the files into place; returns what was done, in words. Nothing is awaited once it is done."""
        folder, path = site_folder(self._places.folders, site), self._path(run)
        staging = self._places.staging(run.id)
        if path is None:
            if not await trio.Path(folder.path).exists():
                await self._make_home(site)
            move = partial(switch, folder.path, folder.uid, staging, self._tree(run), LEFT_OUT)
            await trio.to_thread.run_sync(move)
            return f"All files of {site.domain} were replaced."
        # The site's file helper is started before the restored files are staged, because at its start it removes all
        # staged files that it finds.
        await self._files.ask(folder, FreeSpace())
        name = f"restore-{run.id}"
        restored = self._tree(run) / path
        await trio.to_thread.run_sync(move_restored, folder.path, folder.uid, restored, TEMPORARY.decode(), name)
        await self._files.ask(folder, PlaceRestored(name, path), seconds=_PLACE_SECONDS)
        return f"{path} was restored."

    async def _make_home(self, site: SiteRow) -> None:
        """Create the home of a site whose folder was lost. No repair creates it, because it would be empty."""
        try:
            await self._accounts.make(site.account, None)
        except AccountError as error:
            raise unavailable(str(error)) from error

    async def _needed(self, run: JobRun, site: SiteRow) -> int:
        """Bytes needed next to the site: its files, and per database the dump, its size once loaded, and its current
        size."""
        needed = 0
        if BackupPart.FILES in self._parts(run):
            needed += await trio.to_thread.run_sync(size_below, str(self._tools.listed(run)), self._path(run) or "")
        if BackupPart.DATABASES in self._parts(run):
            needed += sum(dump.size + dump.loaded for dump in await self._wanted(run))
            needed += await self._tools.databases.size(site, self._only(run))
        return needed

    async def _wanted(self, run: JobRun) -> list[DatabaseDump]:
        """The dumps to load."""
        only = self._only(run)
        wanted = [dump for dump in await self._tools.dumped(run) if only in (None, dump.name)]
        if only is not None and not wanted:
            raise not_found(f"The backup holds no database {only}; the site was not changed.")
        return wanted

    async def _configuration_of(self, run: JobRun) -> Configuration:
        """The backup's configuration."""
        told = await trio.to_thread.run_sync((self._places.said(run.id) / CONTENT / FILE).read_text)
        return parsed_configuration(json.loads(told))

    def _tree(self, run: JobRun) -> Path:
        return self._places.staging(run.id) / NEW / TREE

    def _path(self, run: JobRun) -> str | None:
        path: str | None = run.parameters["path"]
        return path

    def _only(self, run: JobRun) -> str | None:
        """The database to restore, if the order is for a single database and no files."""
        name: str | None = run.parameters.get("database")
        return name

    def _parts(self, run: JobRun) -> Sequence[BackupPart]:
        if self._path(run) is not None:
            return (BackupPart.FILES,)
        if self._only(run) is not None:
            return (BackupPart.DATABASES,)
        return [BackupPart(part) for part in run.parameters.get("parts", USUAL_PARTS)]

    async def _of(self, run: JobRun) -> tuple[SiteRow, BackupRow, RepositoryRow]:
        backup = await read_backup(self._tools.database, UUID(run.parameters["backup"]))
        site = await read_site(self._tools.database, run.site_id)
        if backup is None or site is None:
            raise not_found("The site or the backup no longer exists.")
        if backup.status is not BackupStatus.COMPLETED:
            raise conflict(f"The backup is {backup.status.value}.")
        if site.owner_id != backup.owner_id:
            raise conflict("The site and the backup no longer belong to the same customer; the site was not changed.")
        return site, backup, await read_repository(self._tools.database, backup.repository_id)
