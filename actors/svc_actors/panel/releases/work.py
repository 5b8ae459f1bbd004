"""The jobs of the panel's own releases: one looks for the newest offered release, the other installs it.

A job ends with the core, and the core ends when a release is tried. So the job prepares everything next to the running
release, and its last step gives an order to the program that switches releases (`svc_webhost.releases`); the core that
runs after the trial records the outcome (`watch`). Until the last step the running release is not touched.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from svc_actors.panel.jobs import Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.jobs.jobs import StepWork
from svc_actors.panel.releases.manifest import Manifest, ReleaseError, age, verified
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.records import (
    RunState,
    last_run,
    read_look,
    write_look,
    write_refused,
    write_run,
    write_trial,
    write_withdrawn,
)
from svc_actors.panel.releases.sources import FolderSource, Source
from svc_actors.panel.updates.work import require_on
from svc_actors.store import Database, Queryable, Transaction
from svc_common.errors import conflict, unavailable
from svc_webhost.releases.layout import Ports, Trial, release_name
from svc_webhost.tree_removal import remove_tree

LOOK: Final = "release.look"
INSTALL: Final = "release.install"
STEPS: Final = ("look", "fetch", "unpack", "check", "try")
_CHECK_SECONDS: Final = 120.0
_MOST_VISITED: Final = 100
_SPARE_BYTES: Final = 256 << 20
"""Bytes that must stay free in addition to the release's own size: a full disk would stop everything else that
writes."""
_JOBS_SECONDS: Final = 600.0
"""How long to wait for other jobs, which would be interrupted when the core ends."""
_PAUSE: Final = 1.0

PROGRAM: Final = Path("bin/svc")
_PART: Final = ".part"


async def enqueue_look(tx: Transaction, own: OwnRelease | None, *, daily: bool = False) -> Job:
    """Queue a look. `daily`: it was not ordered by a person."""
    await require_on(tx)
    _require(own)
    title = "Look for a newer release of the panel"
    return await enqueue(tx, NewJob(LOOK, title, JobClass.SYSTEM, ("look",), parameters={"daily": daily}))


async def enqueue_install(tx: Transaction, own: OwnRelease | None) -> Job:
    """Raises `conflict` if updates are off, or another release is being installed or tried."""
    await require_on(tx)
    _require(own)
    if (other := await under_way(tx)) is not None:
        raise conflict("A release is already being installed.", hint=f"Follow its job, {other}.")
    return await enqueue(tx, NewJob(INSTALL, "Install the newest release of the panel", JobClass.SYSTEM, STEPS))


async def under_way(queryable: Queryable) -> int | None:
    """The job that is queued or running, or whose release is on trial."""
    queued: int | None = await queryable.fetchval(
        "SELECT id FROM jobs WHERE kind = $1 AND status IN ('queued', 'running') LIMIT 1", INSTALL
    )
    last = await last_run(queryable)
    return last.job_id if queued is None and last is not None and last.state is RunState.TRIAL else queued


def _require(own: OwnRelease | None) -> OwnRelease:
    if own is None:
        raise conflict(
            "This panel was not installed by its Debian package, so no other release can be installed next to it.",
            hint="Update it in the way it was installed (docs/updates.md).",
        )
    return own


def acceptable(manifest: Manifest, own: OwnRelease) -> str | None:
    """Why the release may not replace the running one; None if it may, or is the running one."""
    if manifest.architecture != own.architecture:
        return f"it is for {manifest.architecture}, and this server is {own.architecture}"
    if age(manifest.version) < age(own.version):
        return f"it is older than {own.version}, which runs: there is no way back to an older release"
    if age(manifest.follows) > age(own.version):
        return f"it can follow {manifest.follows} and newer, and {own.version} runs: install one between first"
    if age(manifest.package) > age(own.package):
        return (
            f"it needs the Debian package svc-panel {manifest.package} or newer, and {own.package} is installed: "
            "install the package of the new release instead"
        )
    return None


@dataclass(frozen=True)
class ReleaseWork:
    """The work of both kinds. `source`: the operator's configured source, if any; releases that were put into the
    folder `incoming` by hand count as well. `socket` is the core's socket."""

    database: Database
    own: OwnRelease | None
    source: Source | None
    socket: Path
    ports: Ports

    async def look(self, run: JobRun) -> None:
        own = _require(self.own)
        await require_on(self.database)
        try:
            line, manifest, _ = await self._newest(own)
        except ReleaseError as error:
            await run.transact(partial(write_look, error=f"{error}."))
            if run.parameters.get("daily"):
                # The failure is recorded and shown. The daily look was not ordered by a person, so its job does not
                # fail every day.
                await run.log(f"The offered release could not be determined: {error}.")
                return
            raise unavailable(f"The offered release could not be determined: {error}.") from error
        await run.transact(partial(write_look, line=line))
        if manifest is None or age(manifest.version) <= age(own.version):
            await run.log(f"There is no release newer than {own.version}, which runs.")
        else:
            await run.log(f"{manifest.version} is offered; {own.version} runs.")
        if run.job.kind != INSTALL:
            return
        if manifest is None or age(manifest.version) == age(own.version):
            raise conflict(f"There is no release newer than {own.version}; nothing was changed.")
        if (why := acceptable(manifest, own)) is not None:
            raise conflict(f"Release {manifest.version} is not installed: {why}.")
        release = release_name(manifest.version, manifest.archive.sha256)
        await run.transact(
            partial(write_run, job_id=run.id, version=manifest.version, release=release, before=own.name)
        )

    async def fetch(self, run: JobRun) -> None:
        own = _require(self.own)
        manifest, release = await self._chosen(own)
        own.releases.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
        await trio.to_thread.run_sync(own.releases.prune, release)
        if own.releases.folder(release).is_dir():
            await run.log("It is present from an earlier run.")
            return
        _require_room(own.releases.root, manifest.archive.size + manifest.archive.unpacked)
        for source in self._sources(own):
            try:
                if (line := await source.line()) is not None and verified(line, own.keys) == manifest:
                    await source.fetch(manifest.archive, _archive(own, release))
                    await run.log(f"{manifest.archive.name} is the file that was signed.")
                    return
            except ReleaseError as error:
                _archive(own, release).unlink(missing_ok=True)
                raise unavailable(f"Release {manifest.version} is not installed: {error}.") from error
        raise unavailable(f"Release {manifest.version} is no longer offered; nothing was changed.")

    async def unpack(self, run: JobRun) -> None:
        own = _require(self.own)
        manifest, release = await self._chosen(own)
        archive = _archive(own, release)
        try:
            await trio.to_thread.run_sync(unpack, archive, manifest, own.releases.folder(release))
        except ReleaseError as error:
            raise unavailable(f"Release {manifest.version} is not installed: {error}.") from error
        finally:
            archive.unlink(missing_ok=True)

    async def check(self, run: JobRun) -> None:
        """The new release itself checks whether it can serve here, with these settings and this database."""
        own = _require(self.own)
        _, release = await self._chosen(own)
        settings = {name: value for name, value in os.environ.items() if name.startswith("SVC_")}
        command = (str(own.releases.folder(release) / PROGRAM), "panel", "check")
        await run.program(command, seconds=_CHECK_SECONDS, environment=settings)

    def step(self, name: str) -> StepWork | None:
        return {"try": self.start_trial}.get(name)

    async def start_trial(self, run: JobRun) -> None:
        own = _require(self.own)
        _, release = await self._chosen(own)
        await require_on(self.database)
        await self._other_jobs_ended(run)
        sites = await self.database.fetch(
            "SELECT domain FROM sites WHERE status = 'active' ORDER BY number LIMIT $1", _MOST_VISITED
        )
        trial = Trial(
            run.id,
            release,
            own.name,
            own.boot,
            str(self.socket),
            self.ports,
            tuple(row["domain"] for row in sites),
        )
        await run.log("The trial starts now: this core ends. `svc update panel show` says whether it was kept.")
        # The order is written before the record: a recorded trial without an order would look like an order that no
        # program has taken.
        own.releases.order(trial)
        await run.transact(partial(write_trial, job_id=run.id))
        try:
            await own.begin_switch()
        except ReleaseError as error:
            own.releases.withdraw()
            await run.transact(partial(write_withdrawn, job_id=run.id))
            raise unavailable(f"The release was not started: {error}.") from error

    async def ended(self, tx: Transaction, job: Job) -> None:
        if job.kind == INSTALL and job.status is not JobStatus.SUCCEEDED:
            await write_refused(tx, job_id=job.id, reason=job.error.message if job.error is not None else None)

    def _sources(self, own: OwnRelease) -> Sequence[Source]:
        return (FolderSource(own.releases.incoming), *([self.source] if self.source is not None else []))

    async def _newest(self, own: OwnRelease) -> tuple[str | None, Manifest | None, Source | None]:
        """The newest release of all sources. Raises `ReleaseError` if any source offers an untrusted release."""
        best: tuple[str | None, Manifest | None, Source | None] = (None, None, None)
        if not own.keys:
            raise ReleaseError("this build of the panel has no key to verify releases with")
        for source in self._sources(own):
            if (line := await source.line()) is not None:
                found = verified(line, own.keys)
                if best[1] is None or age(found.version) > age(best[1].version):
                    best = (line.strip(), found, source)
        return best

    async def _chosen(self, own: OwnRelease) -> tuple[Manifest, str]:
        """The release that the first step has chosen, verified again."""
        look = await read_look(self.database)
        assert look is not None, "the first step writes it"
        assert look.line is not None, "the first step ends the job otherwise"
        manifest = verified(look.line, own.keys)
        return manifest, release_name(manifest.version, manifest.archive.sha256)

    async def _other_jobs_ended(self, run: JobRun) -> None:
        async def others() -> int:
            found: int = await self.database.fetchval(
                "SELECT count(*) FROM jobs WHERE status = 'running' AND id <> $1", run.id
            )
            return found

        with trio.move_on_after(_JOBS_SECONDS):
            while True:
                if not await others():
                    return
                await trio.sleep(_PAUSE)  # The jobs belong to other queues, which do not signal their ends here.
        raise conflict(
            f"Other jobs were still running after {_JOBS_SECONDS / 60:g} minutes, and would end with this core. The "
            "release is prepared but was not tried.",
            hint="Install it again once they have ended.",
        )


def _archive(own: OwnRelease, release: str) -> Path:
    return own.releases.releases / f"{release}.tar.gz.part"


def _require_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted + _SPARE_BYTES:
        raise unavailable(
            f"{folder} has {free >> 20} MiB free, and the release takes {wanted >> 20} MiB, of which "
            f"{_SPARE_BYTES >> 20} MiB more must stay free. Nothing was changed."
        )


# The folder of a release gets its name only once everything is on the disk.
def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Does nothing if the folder exists. Accepts only files and folders, and makes them readable for everybody and
    writable for root. Raises `ReleaseError`."""
    if folder.is_dir():
        return
    part = folder.with_name(f"{folder.name}{_PART}")
    remove_tree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o755, parents=True)
        with tarfile.open(archive, "r|gz") as entries:
            total = 0
            for entry in entries:
                total += entry.size
                if total > manifest.archive.unpacked:
                    raise ReleaseError(f"{archive.name} is larger than its manifest says")
                _put(entries, entry, part)
        if not os.access(part / PROGRAM, os.X_OK):
            raise ReleaseError(f"{archive.name} has no program {PROGRAM}")
        os.sync()
        part.rename(folder)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ReleaseError(f"{archive.name} cannot be unpacked: {error}") from error
    finally:
        remove_tree(part, ignore_errors=True)
    os.sync()


def _put(entries: tarfile.TarFile, entry: tarfile.TarInfo, part: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise ReleaseError(f"the archive has the name {entry.name!r} in it, which leads out of it")
    path = part / name
    if entry.isdir():
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif entry.isfile() and (content := entries.extractfile(entry)) is not None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        mode = 0o755 if entry.mode & 0o100 else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            shutil.copyfileobj(content, file)
        # The modification time is restored because Python uses it to decide whether a .pyc belongs to this file.
        os.utime(path, (entry.mtime, entry.mtime))
    else:
        raise ReleaseError(f"the archive has {entry.name!r} in it, which is neither a file nor a folder")
