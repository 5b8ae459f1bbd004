"""Copies backups to a target: the new one first, then others that the target lacks, the newest first, for a limited
time.

After each step the records say which backups the target holds, as listed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.local_target import require_mounted, require_room_at
from svc_actors.panel.backups.records import BackupRow, added_bytes, completed, write_copies, write_copy_error
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.backups.tools import Tools, ids_of
from svc_actors.panel.backups.unrecorded import tell_of_unknown
from svc_actors.panel.jobs import JobRun
from svc_common.errors import ServiceError, unavailable
from svc_webhost.restic import NoRepositoryError, Repository, Snapshot, StalledError

CATCH_UP_SECONDS: Final = 900.0
"""After this time no further older backup is copied, because other sites' backups wait behind this one."""


class Copying:
    """One job's copies of a site's backups to one target."""

    def __init__(self, tools: Tools, run: JobRun, target: TargetRow, repository: RepositoryRow, local: Repository):
        self._tools = tools
        self._run = run
        self._target = target
        self._repository = repository
        self._local = local
        self._remote = target.repository(repository.id, tools.places.work(run.id), tools.sealer)
        self._there: list[Snapshot] = []
        """The snapshots that the target held when it was last listed."""

    async def bring(self, backup: BackupRow) -> None:
        """Make the target hold a backup, then the other completed ones, and none that was deleted. Raises ServiceError
        if the target does not hold `backup`; other failures are noted in the job's log and in the records."""
        await require_mounted(self._tools.database, self._target)
        self._there = await self._open()
        here = await self._tools.restic.snapshots(self._run.program, self._local)
        wanted = [backup_id for backup_id, _ in await completed(self._tools.database, self._repository.id)]
        held = await self._write(wanted, here)
        missing = [backup_id for backup_id in wanted if backup_id not in held]
        if missing:
            added = await added_bytes(self._tools.database, backup.id)
            await require_room_at(self._target, Path(self._local.location), Path(self._remote.location), added)
        if backup.id not in held:
            held = await self._copy(backup.id, wanted, here)
        try:
            await self._catch_up([each for each in missing if each not in held], wanted, here)
            # Expired backups at the target are deleted only if this server has a complete backup: otherwise they may be
            # the last usable ones.
            until = self._repository.known_until if ids_of(here, backup.id) else None
            _, judged = await self._tools.drop_superfluous(
                self._run, self._repository.id, self._remote, self._there, until
            )
            await self._run.transact(
                partial(tell_of_unknown, repository=self._repository, target=self._target, judged=judged)
            )
        except ServiceError as failure:
            await self._log(f"the rest is done with the next backup: {failure.message}")

    async def _open(self) -> list[Snapshot]:
        """The backups that the target holds; creates a repository if the target has none."""
        restic, program = self._tools.restic, self._run.program
        try:
            there = await restic.snapshots(program, self._remote)
            await restic.unlock(program, self._remote)
        except NoRepositoryError:
            await self._run.transact(
                partial(write_copies, repository_id=self._repository.id, target_id=self._target.id, held=[])
            )
            await restic.init(program, self._remote, self._local)
            return []
        return there

    async def _catch_up(self, missing: Sequence[UUID], wanted: Sequence[UUID], here: Sequence[Snapshot]) -> None:
        """Copy older backups. Raises StalledError if the target hangs: each further backup would wait just as long."""
        until = trio.current_time() + CATCH_UP_SECONDS
        for place, backup_id in enumerate(missing):
            if trio.current_time() >= until:
                await self._log(f"{len(missing) - place:,} older backups are copied after the next one.")
                return
            try:
                await self._copy(backup_id, wanted, here)
            except ServiceError as failure:
                await self._run.transact(
                    partial(write_copy_error, backup_id=backup_id, target_id=self._target.id, error=failure.message)
                )
                if isinstance(failure, StalledError):
                    raise
                await self._log(f"an older backup has no copy: {failure.message}")

    async def _copy(self, backup_id: UUID, wanted: Sequence[UUID], here: Sequence[Snapshot]) -> set[UUID]:
        """Returns the backups that the target then holds. Raises ServiceError if this backup is not among them."""
        snapshots = ids_of(here, backup_id)
        if not snapshots:
            raise unavailable("The backup is no longer in its repository on this server.", hint="Create a new backup.")
        restic, program = self._tools.restic, self._run.program
        await restic.copy(program, self._local, self._remote, snapshots)
        self._there = await restic.snapshots(program, self._remote)
        held = await self._write(wanted, here)
        if backup_id not in held:
            raise unavailable(
                "restic copied the backup, but the target does not have it.", hint="Check the disk of the target."
            )
        return held

    async def _write(self, wanted: Sequence[UUID], here: Sequence[Snapshot]) -> set[UUID]:
        """Record which of the backups the target holds complete."""
        held = {each for each in wanted if len(ids_of(self._there, each)) >= max(1, len(ids_of(here, each)))}
        await self._run.transact(
            partial(write_copies, repository_id=self._repository.id, target_id=self._target.id, held=held)
        )
        return held

    async def _log(self, line: str) -> None:
        await self._run.log(f"{self._target.name}: {line}")
