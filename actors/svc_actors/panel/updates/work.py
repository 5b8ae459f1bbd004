"""The jobs of updates: fetch the lists, request all sites, install packages, restart programs that still run old files,
and request all sites again.

Progress is in the job's row of `update_runs`, so that however the job ends, even by a restart of the core, it is known
what was installed: `update.installed` is written with the end of a job that has installed anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import trio

from svc_actors.alerts import set_alert
from svc_actors.panel.jobs import Job, JobClass, JobError, JobRun, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.updates.records import (
    UpdateMode,
    UpdateRun,
    Wanted,
    read_look,
    read_mode,
    read_run,
    write_before,
    write_installed,
    write_look,
    write_plan,
    write_silent,
)
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.runtime import DomainError
from svc_actors.store import Database, Queryable, Transaction
from svc_actors.webhooks.payload import Scalar
from svc_common.errors import ServiceError, conflict, unavailable
from svc_webhost.apps.model import KIND as APP
from svc_webhost.launcher import LauncherError, ServiceName, SiteLauncher
from svc_webhost.packages import PackageError, Packages, PackageUpdate
from svc_webhost.php.pool import KIND as PHP
from svc_webhost.site_tasks import SiteTasks, SiteVisit

LOOK: Final = "update.look"
INSTALL: Final = "update.install"
STEPS: Final = ("look", "visit_before", "install", "restart", "visit_after")
IRREVOCABLE: Final = "Packages that are installed half-way would be left behind."
ALERT: Final = "update-lists"
PATIENCE: Final = timedelta(days=3)
"""How long the package lists may be unreachable before an alert is raised."""
_AT_ONCE: Final = 8
_VISIT_SECONDS: Final = 20.0
_PATIENCE: Final = 60.0
"""How long a site may take to answer as before, after its programs were restarted."""
_PAUSE: Final = 1.0
_WORST: Final = 500
"""From this HTTP status on a site counts as not answering."""
T = TypeVar("T")
_OF_A_SITE: Final = re.compile(rf"site-(?P<number>[0-9]+)-(?P<kind>{PHP}|{APP})?.*")

ROUND_SECONDS: Final = 600.0
EVERY: Final = timedelta(hours=24)


async def enqueue_look(tx: Transaction, *, daily: bool = False) -> Job:
    """Queue a look. `daily`: it was not ordered by a person."""
    await require_on(tx)
    title = "Look for updates of packages"
    return await enqueue(tx, NewJob(LOOK, title, JobClass.SYSTEM, ("look",), parameters={"daily": daily}))


async def enqueue_install(tx: Transaction, scope: Wanted, *, daily: bool = False) -> Job:
    """Queue an installation. `daily`: it was not ordered by a person. Raises `conflict` if updates are off, or a job of
    this kind has not ended."""
    await require_on(tx)
    if (other := await under_way(tx)) is not None:
        raise conflict("Updates are being installed already.", hint=f"Follow their job, {other}.")
    title = "Install security updates" if scope is Wanted.SECURITY else "Install updates"
    parameters = {"wanted": scope.value, "daily": daily}
    return await enqueue(tx, NewJob(INSTALL, title, JobClass.SYSTEM, STEPS, parameters=parameters))


async def under_way(queryable: Queryable) -> int | None:
    found: int | None = await queryable.fetchval(
        "SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') LIMIT 1", INSTALL
    )
    return found


async def require_on(queryable: Queryable) -> None:
    if await read_mode(queryable) is UpdateMode.OFF:
        raise conflict("Updates are off; nothing was changed.", hint="Turn them on: svc update configure --mode manual")


def chosen(updates: Sequence[PackageUpdate], scope: Wanted) -> list[PackageUpdate]:
    return [each for each in updates if not each.held and (each.security or scope is Wanted.ALL)]


@dataclass(frozen=True)
class UpdateWork:
    """The work of both kinds. `restart_site` replaces a site's programs without losing a visitor."""

    database: Database
    packages: Packages
    launcher: SiteLauncher
    tasks: SiteTasks
    restart_site: Callable[[SiteRow], Awaitable[None]]

    async def look(self, run: JobRun) -> None:
        """Fetch the lists. If that fails, an ordered look fails. The daily look records the failure instead: it
        installs nothing, and an alert opens once the failure lasts."""
        await require_on(self.database)
        fetched = True
        try:
            await self.packages.refresh(run.program)
        except ServiceError as error:
            await run.transact(partial(_looked, error=error.message))
            if not run.parameters.get("daily"):
                raise
            await run.log(f"The package lists could not be fetched: {error.message}")
            fetched = False
        else:
            await run.transact(_looked)
        if run.job.kind == LOOK:
            return
        planned = chosen(await self._updates(), Wanted(run.parameters["wanted"])) if fetched else []
        await run.transact(partial(write_plan, job_id=run.id, planned=planned))
        await run.log(*map(_line, planned) if planned else ["There is nothing to install."])

    async def visit_before(self, run: JobRun) -> None:
        if not (await self._of(run)).planned:
            return
        sites = await self.database.fetch("SELECT domain FROM sites WHERE status = 'active' ORDER BY number")
        answers: dict[str, int] = {}
        await _each([row["domain"] for row in sites], partial(self._note, answers))
        await run.transact(partial(write_before, job_id=run.id, before=answers))
        well = sum(map(_well, answers.values()))
        await run.log(f"{well} of {len(answers)} sites answer.")

    async def install(self, run: JobRun) -> None:
        """If apt fails, the step fails, but the sites are checked all the same, because some packages may have been
        installed."""
        found = await self._of(run)
        if not found.planned:
            return
        await require_on(self.database)
        try:
            await self.packages.install(found.planned, run.program)
        except ServiceError as error:
            run.step_error = JobError.of(error)
        there = await self._versions()
        done = [each for each in found.planned if there.get(each.name) == each.available]
        await run.transact(partial(write_installed, job_id=run.id, installed=done))
        await run.log(f"{len(done)} of {len(found.planned)} packages are installed.")

    async def restart(self, run: JobRun) -> None:
        """Restarts only programs whose files were replaced; programs that run the new files already are left alone."""
        if not (await self._of(run)).planned:
            return
        try:
            outdated = await self.packages.outdated(await self.launcher.processes())
        except LauncherError as error:
            raise unavailable(f"The running programs could not be checked: {error}") from error
        sites: set[int] = set()
        for name in sorted(outdated):
            match = _OF_A_SITE.fullmatch(name)
            if match is None:
                await self._restart(run, name)
            elif match["kind"]:
                sites.add(int(match["number"]))
        await _each(sorted(sites), partial(self._restart_site, run))

    async def visit_after(self, run: JobRun) -> None:
        found = await self._of(run)
        if not found.planned:
            return
        silent: list[str] = []
        await _each([domain for domain, status in found.before.items() if _well(status)], partial(self._await, silent))
        silent.sort()
        await run.transact(partial(write_silent, job_id=run.id, silent=silent))
        if silent:
            await run.log(*(f"{domain} answered before and no longer does." for domain in silent))
            names = f"{', '.join(silent[:5])}{f' and {len(silent) - 5} more' if len(silent) > 5 else ''}"
            raise unavailable(
                f"{len(silent)} sites answered before the updates and do not now: {names}.",
                hint="svc site diagnose says what is wrong with each; the packages stay as they are now.",
            )
        if missing := set(found.planned) - set(found.installed):
            raise unavailable(
                f"{len(missing)} of {len(found.planned)} packages were not updated. Every site answers as before.",
                hint="The log of the step `install` has apt's output.",
            )
        await run.log("Every site answers as before.")

    async def ended(self, tx: Transaction, job: Job) -> None:
        found = await read_run(tx, job.id)
        if found is None or not found.installed:
            return
        data: dict[str, Scalar] = {
            "job_id": job.id,
            "packages": " ".join(each.name for each in found.installed),
            "security": sum(each.security for each in found.installed),
            "failed": len(found.planned) - len(found.installed),
            "silent_sites": len(found.silent),
        }
        await emit(tx, WebhookEvent.UPDATE_INSTALLED, data=data)

    async def _of(self, run: JobRun) -> UpdateRun:
        found = await read_run(self.database, run.id)
        assert found is not None, "the first step writes it"
        return found

    async def _updates(self) -> list[PackageUpdate]:
        try:
            return await self.packages.updates()
        except PackageError as error:
            raise unavailable(f"The available updates could not be determined: {error}.") from error

    async def _versions(self) -> dict[str, str]:
        try:
            return dict(await self.packages.versions())
        except PackageError as error:
            raise unavailable(f"The installed packages could not be determined: {error}.") from error

    async def _restart(self, run: JobRun, name: ServiceName) -> None:
        try:
            await self.launcher.restart(name)
            await run.log(f"{name} was restarted.")
        except LauncherError as error:
            await run.log(f"{name} could not be restarted and still runs the old version: {error}")

    async def _restart_site(self, run: JobRun, number: int) -> None:
        site_id = await self.database.fetchval("SELECT id FROM sites WHERE number = $1", number)
        site = await read_site(self.database, site_id) if site_id is not None else None
        if site is None:
            return
        try:
            await self.restart_site(site)
            await run.log(f"What runs for {site.domain} was restarted.")
        except DomainError as error:
            await run.log(f"What runs for {site.domain} could not be restarted: {error}")

    async def _note(self, answers: dict[str, int], domain: str) -> None:
        answers[domain] = await self._status(domain)

    async def _await(self, silent: list[str], domain: str) -> None:
        until = trio.current_time() + _PATIENCE
        while not _well(await self._status(domain)):
            if trio.current_time() >= until:
                silent.append(domain)
                return
            await trio.sleep(_PAUSE)  # There is no signal when a restarted program is ready.

    async def _status(self, domain: str) -> int:
        """The HTTP status that a visitor gets from this server's own nginx; 0 for no answer. Redirects to HTTPS are
        followed."""
        status = 0
        with trio.move_on_after(_VISIT_SECONDS):
            for secure in (False, True):
                status = await self.tasks.visit(SiteVisit(domain, "/", secure), _unheard)
                if status not in (301, 302, 307, 308):
                    break
            return status
        return 0


async def _looked(tx: Transaction, *, error: str | None = None) -> None:
    look = await write_look(tx, error=error)
    message = None
    if look.failing_since is not None and look.tried_at - look.failing_since >= PATIENCE:
        message = (
            f"Debian's package lists could not be fetched since {look.failing_since:%Y-%m-%d}, so security updates are "
            f"not found: {error} (`svc update look` tries again; `svc update configure --mode off` ends the daily look)"
        )
    await set_alert(tx, ALERT, message)


def _well(status: int) -> bool:
    return 0 < status < _WORST


def _line(update: PackageUpdate) -> str:
    return f"{update.name} {update.installed} becomes {update.available}{' (security)' if update.security else ''}."


async def _each(things: Sequence[T], act: Callable[[T], Awaitable[None]]) -> None:
    """Run this for each site, a few at once."""
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def act_on(thing: T) -> None:
        async with limit:
            await act(thing)

    async with trio.open_nursery() as nursery:
        for thing in things:
            nursery.start_soon(act_on, thing)


async def _unheard(lines: list[str]) -> None:
    """Discards the content of a page."""


async def check_daily(database: Database) -> None:
    """One round: queue the job that is due. A failed attempt counts, so the next one is a day later."""

    async def work(tx: Transaction) -> None:
        mode, look = await read_mode(tx), await read_look(tx)
        due = look is None or datetime.now(UTC) - look.tried_at >= EVERY
        queued = await tx.fetchval(
            "SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') LIMIT 1", LOOK
        )
        if mode is UpdateMode.OFF or not due or queued is not None or await under_way(tx) is not None:
            return
        if mode is UpdateMode.AUTOMATIC:
            await enqueue_install(tx, Wanted.SECURITY, daily=True)
        else:
            await enqueue_look(tx, daily=True)

    await database.transact(work)
