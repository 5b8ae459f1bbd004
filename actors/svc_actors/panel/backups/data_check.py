"""The work of `backup.check_data`: read one part of a repository's data, here or at a target, and compare it.

It takes no lock in the repository: as a job of the site it never runs next to another job of the repository, and a lock
would stop backups if the server dies here. A restic that somebody starts by hand may remove data meanwhile; then the
part is read a second time before it counts as damaged (`Restic.read_data`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import trio

from svc_actors.panel.backups.data_check_records import (
    PLACE_REMOVED,
    DataCheckRow,
    check_of_job,
    end_data_check,
    parts_of,
    size_by_records,
    start_round,
    write_part,
)
from svc_actors.panel.backups.local_target import bytes_below, require_mounted
from svc_actors.panel.backups.repositories import RepositoryRow, read_repository
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.jobs import Job, JobRun
from svc_actors.store import Transaction
from svc_common.errors import not_found, unavailable
from svc_webhost.restic import DamagedDataError, Repository
from svc_webhost.tree_removal import remove_tree

PART_BYTES: Final = 4 << 30
"""About what one job reads: half a minute of a disk, and seven minutes of a target with 10 MB/s."""
_METADATA_PART: Final = 20
"""A cache of indexes and trees takes at most about one byte for so many of the repository."""


class DataCheckWork:
    """The work of `backup.check_data`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def read(self, run: JobRun) -> None:
        tools = self._tools
        async with tools.cleaned_on_failure(run):
            check, repository = await self._of(run)
            local = await tools.local(run, repository, create=True)
            place, named = await self._place(run, check, repository, local)
            size = await self._size(place, local, repository)
            if check.parts is None:
                parts = parts_of(size, PART_BYTES)

                async def start(tx: Transaction) -> None:
                    nonlocal check
                    check = await start_round(tx, check, parts)

                await run.transact(start)
            assert check.parts is not None
            part = check.unread[0]
            cache = None if place.is_local else await self._cache(check, size)
            try:
                await tools.restic.read_data(run.program, place, part, check.parts, cache)
                report = None
            except DamagedDataError as damage:
                report = damage.message
            ended = False

            async def write(tx: Transaction) -> None:
                nonlocal ended
                ended = await write_part(tx, run.id, part, report, repository, named) or ended

            await run.transact(write)
            if ended:
                await trio.to_thread.run_sync(partial(remove_tree, tools.places.data_caches, ignore_errors=True))
            if report is not None:
                raise unavailable(f"Data is damaged {named}: {report}", hint="The alert says what to do.")
            await run.log(f"Part {part} of {check.parts} of the data was read {named}, and is whole.")
        await tools.clean(run.id)

    async def ended(self, tx: Transaction, job: Job) -> None:
        await end_data_check(tx, job)

    async def _of(self, run: JobRun) -> tuple[DataCheckRow, RepositoryRow]:
        check = await check_of_job(self._tools.database, run.id)
        if check is None:
            raise not_found(PLACE_REMOVED)
        return check, await read_repository(self._tools.database, check.repository_id)

    async def _place(
        self, run: JobRun, check: DataCheckRow, repository: RepositoryRow, local: Repository
    ) -> tuple[Repository, str]:
        """The repository that is read, and where it is, in words."""
        if check.target_id is None:
            return local, f"on this server ({local.location})"
        tools = self._tools
        target = await TargetRow.read(tools.database, check.target_id)
        await require_mounted(tools.database, target)
        place = target.repository(repository.id, tools.places.work(run.id), tools.sealer)
        return place, f"at {target.name} ({place.location})"

    async def _size(self, place: Repository, local: Repository, repository: RepositoryRow) -> int:
        """About the bytes of the place. A target may have more than this server, which after a recovery has no backups
        yet: if it cannot be counted, the records say how much at least."""
        here = await trio.to_thread.run_sync(bytes_below, Path(place.location if place.is_local else local.location))
        return here if place.is_local else max(here, await size_by_records(self._tools.database, repository.id))

    async def _cache(self, check: DataCheckRow, size: int) -> Path:
        """The folder where restic keeps indexes and trees of a remote repository of `size` bytes from part to part of a
        round, so that they are fetched once. Those of other rounds are removed."""
        await self._tools.require_room(
            size // _METADATA_PART,
            what="Reading the data of the target",
            left="nothing was read",
            hint="Free some space.",
        )
        return await trio.to_thread.run_sync(self._tools.places.make_data_cache, check.id)
