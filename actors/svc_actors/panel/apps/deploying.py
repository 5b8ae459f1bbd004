"""The job that deploys an application: fetches and builds the code next to the running release, then switches to it.

Everything runs as the account of the site and within its limits. Visitors see no change until the new release has
answered its probe. If a step fails, hangs or is cancelled, the previous release keeps running, and the folder of the
deployment is removed. Folders in `releases/` that an interrupted core has left are removed by the next deployment.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.apps.deploy_keys import deploy_key_for, repository_connection, upload_pack_order
from svc_actors.panel.apps.deployments import (
    mark_removed,
    stale_folders,
    write_commit,
    write_ready,
    write_unusable,
)
from svc_actors.panel.apps.records import DEPLOYED
from svc_actors.panel.apps.site_app import SiteApp
from svc_actors.panel.files import site_folder
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import Job, JobRun, ProgramFailed, Read
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError, conflict, not_found, unavailable
from svc_common.outbound import Outbound
from svc_webhost.apps.builds import Build, build_commands, build_environment
from svc_webhost.apps.repository import Repository, RepositoryRefused, is_commit
from svc_webhost.confined.protocol import Delete, Extract, ListFolder, MakeFolder, Stat
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, SiteLauncher
from svc_webhost.site_runtime import SiteCommands, site_environment

KIND: Final = "app.deploy"
STEPS: Final = ("fetch", "build", "start", "tidy")
SECONDS: Final = 1800.0
BUILD_SECONDS: Final = 900.0
_FETCH_SECONDS: Final = 600.0
_REMOVE_SECONDS: Final = 60.0
_MOST_LISTED: Final = 500
_AS_IT_WAS: Final = "The running release was left as it is."


class AppDeployment:
    """The work of the job. Its parameters: `number`, `build` and maybe `build_script`, the application's `folder`, and
    either `archive` or `git_url` and `git_ref`. `authorities`: certificate authorities to trust for git servers, by
    default the system's."""

    def __init__(
        self,
        database: Database,
        actors: ActorSystem,
        files: ConfinedFiles,
        folders: HostFolders,
        launcher: SiteLauncher,
        outbound: Outbound,
        sealer: Sealer,
        authorities: Path | None = None,
    ) -> None:
        self._database = database
        self._actors = actors
        self._files = files
        self._folders = folders
        self._commands = SiteCommands(folders, launcher)
        self._outbound = outbound
        self._sealer = sealer
        self._authorities = authorities

    async def fetch(self, run: JobRun) -> None:
        site = await self._site(run)
        await self._sweep(site)
        async with self._removed_if_it_fails(run, site):
            to = f"{DEPLOYED}/{run.parameters['number']}"
            await self._files.ask(site_folder(self._folders, site), MakeFolder(to, parents=True))
            if "archive" in run.parameters:
                await self._unpack(run, site, to)
            else:
                await self._check_out(run, site, to)

    async def build(self, run: JobRun) -> None:
        site = await self._site(run)
        code = PurePosixPath(DEPLOYED, str(run.parameters["number"]), run.parameters["folder"])
        async with self._removed_if_it_fails(run, site):
            await self._require_folder(site, code)
            await self._build(run, site, code)
        await run.transact(lambda tx: write_ready(tx, site.id, run.parameters["number"]))

    async def start(self, run: JobRun) -> None:
        site = await self._site(run)
        async with self._removed_if_it_fails(run, site):
            application = self._actors.ref(SiteApp, str(site.id))
            await finished(application.ask(SiteApp.run_deployment, run.parameters["number"]))
        await run.log("Visitors now reach the new release.")

    async def tidy(self, run: JobRun) -> None:
        site = await self._site(run)
        await run.transact(lambda tx: mark_removed(tx, site.id))
        await self._sweep(site)

    async def ended(self, tx: Transaction, job: Job) -> None:
        """If the job failed after the deployment had started to run, the deployment stays `ready`: only the removal of
        older deployments has failed."""
        problem = job.error.message if job.error is not None else "it was cancelled"
        assert job.site_id is not None
        await write_unusable(tx, job.site_id, job.parameters["number"], problem)

    async def _unpack(self, run: JobRun, site: SiteRow, to: str) -> None:
        most = await require_disk_room(self._database, site.id, 0)
        unpacked = Extract(run.parameters["archive"], to, replace=False, most=most)
        answer = await self._files.ask(site_folder(self._folders, site), unpacked, seconds=_FETCH_SECONDS)
        await run.log(f"{answer.result['entries']:,} entries of {unpacked.path} were unpacked.")

    async def _check_out(self, run: JobRun, site: SiteRow, to: str) -> None:
        repository = Repository(run.parameters["git_url"], run.parameters["git_ref"], self._authorities)
        try:
            addresses = await repository.addresses(self._outbound)
        except RepositoryRefused as refused:
            raise unavailable(f"The repository was not fetched: {refused}", hint=_AS_IT_WAS) from refused
        said: list[str] = []

        async def hear(lines: list[str]) -> None:
            said[:] = lines[-1:] or said
            await run.log(*lines)

        async def fetch(speaks_to: int | None = None) -> None:
            environment = repository.environment(addresses, speaks_to)
            given = () if speaks_to is None else (speaks_to,)
            for command in repository.commands(self._folders.sites / site.account.name / to):
                await self._program(
                    *(run, site, PurePosixPath(to), command, _FETCH_SECONDS, environment),
                    read=hear,
                    shown=repository.shown,
                    descriptors=given,
                )

        if repository.by_ssh is None:
            await fetch()
        else:
            key = await deploy_key_for(self._database, site, repository.by_ssh)
            order = upload_pack_order(key, self._sealer, site, repository.by_ssh, addresses[0])
            await repository_connection(run, order, _FETCH_SECONDS, fetch)
        [commit] = said
        if not is_commit(commit):
            raise unavailable(f"git did not report the commit that it fetched: {commit[:200]}", hint=_AS_IT_WAS)
        await run.transact(lambda tx: write_commit(tx, site.id, run.parameters["number"], commit))
        # Visitors need only the code; the history stays in the repository.
        await self._files.ask(site_folder(self._folders, site), Delete([f"{to}/.git"]), seconds=_REMOVE_SECONDS)

    @asynccontextmanager
    async def _removed_if_it_fails(self, run: JobRun, site: SiteRow) -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            problem = error.message if isinstance(error, ServiceError) else "it was cancelled"
            with trio.CancelScope(shield=True, relative_deadline=_REMOVE_SECONDS):
                await self._database.transact(lambda tx: write_unusable(tx, site.id, run.parameters["number"], problem))
                await self._sweep(site)
            raise

    async def _build(self, run: JobRun, site: SiteRow, code: PurePosixPath) -> None:
        build = Build(run.parameters["build"])
        if build.program is not None and not build.program.exists():
            raise unavailable(
                f"This server has no {build.program.name}; nothing was built.",
                hint=f"{_AS_IT_WAS} The administrator of the server can install it: apt install {build.program.name}",
            )
        home = self._folders.sites / site.account.name
        environment = build_environment(home, home / code)
        for command in build_commands(build, run.parameters.get("build_script"), home / code):
            await self._program(run, site, code, command, BUILD_SECONDS, environment, shown=build.shown)

    async def _program(
        self,
        run: JobRun,
        site: SiteRow,
        folder: PurePosixPath,
        command: tuple[str, ...],
        seconds: float,
        environment: Mapping[str, str] | None = None,
        *,
        read: Read | None = None,
        shown: tuple[Path, ...] = (),
        descriptors: tuple[int, ...] = (),
    ) -> None:
        home = self._folders.sites / site.account.name
        try:
            words = await self._commands.command(site.account, command, site.limits, folder=home / folder, shown=shown)
        except LauncherError as error:
            raise unavailable(f"The build was not started: {error}", hint=_AS_IT_WAS) from error
        environment = site_environment(self._folders, site.account) | dict(environment or {})
        try:
            await run.program(words, seconds=seconds, environment=environment, descriptors=descriptors, read=read)
        except ProgramFailed as failed:
            name = Path(command[0]).name
            # npm's last lines name its own log file instead of the cause.
            why = failed.last if failed.last and name != "npm" else f"{name} ended with exit status {failed.status}"
            what = "The build" if read is None else "git"
            raise unavailable(f"{what} failed: {why}", hint=f"{_AS_IT_WAS} The job's log has its output.") from failed

    async def _require_folder(self, site: SiteRow, code: PurePosixPath) -> None:
        try:
            await self._files.ask(site_folder(self._folders, site), Stat(str(code)))
        except ServiceError as error:
            raise conflict(
                f"The code has no folder {code.relative_to(DEPLOYED, code.parts[1])}: {error.message}",
                hint=f"{_AS_IT_WAS} `svc app update --folder` says where in the code the application is.",
            ) from error

    async def _sweep(self, site: SiteRow) -> None:
        """Remove the folders of deployments that can no longer run."""
        folder = site_folder(self._folders, site)
        useless = await stale_folders(self._database, site.id)
        try:
            listed = await self._files.ask(folder, ListFolder(DEPLOYED, 0, _MOST_LISTED))
        except ServiceError as error:
            if error.code is not_found("").code:
                return
            raise
        gone = [f"{DEPLOYED}/{entry['name']}" for entry in json.loads(listed.payload) if entry["name"] in useless]
        if gone:
            await self._files.ask(folder, Delete(gone), seconds=_REMOVE_SECONDS)

    async def _site(self, run: JobRun) -> SiteRow:
        site = await read_site(self._database, run.site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        return site
