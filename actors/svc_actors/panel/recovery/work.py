"""The job that makes this server become the server of a manifest: it reads and opens the manifest, and stages it.

Then the job ends. The core closes, becomes the lost server (`staged`), and opens again with the lost server's database.
Another job, in that database, restores the sites (`sites`): no job can survive the exchange of the database in which it
is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from svc_actors.panel.backups.local_target import require_mounted
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.jobs import Job, JobClass, JobRun, JobStatus, NewJob
from svc_actors.panel.recovery.discovery import DecryptedManifest, open_manifest
from svc_actors.panel.recovery.records import read_order, remove_order
from svc_actors.panel.recovery.remote import Remote
from svc_actors.panel.recovery.staged import RecoveryOrder, StagedRecovery
from svc_actors.store import Database, Queryable, Transaction
from svc_common.errors import conflict, not_found, unavailable

KIND: Final = "recovery.run"
STEPS: Final = ("read_manifest", "put_in_place")


def run_job(hostname: str) -> NewJob:
    return NewJob(KIND, f"Become {hostname}", JobClass.SYSTEM, STEPS)


async def require_new(queryable: Queryable) -> None:
    """Raises `conflict` on a server that has sites: existing sites are never overwritten, and there is no flag to force
    it."""
    sites = await queryable.fetchval("SELECT count(*) FROM sites")
    if sites:
        raise conflict(
            f"This server has {sites} sites of its own; nothing was changed.",
            hint="Recover on a newly installed server, or delete its sites first.",
        )


@dataclass
class RecoveryRun:
    """The work of `recovery.run`. `reopen` makes the core close and open again."""

    database: Database
    remote: Remote
    data_dir: Path
    reopen: trio.Event
    _opened: dict[int, tuple[TargetRow, DecryptedManifest]] = field(default_factory=dict)

    async def read_manifest(self, run: JobRun) -> None:
        order = await read_order(self.database)
        if order is None:
            raise not_found("The order no longer exists; nothing was changed.")
        target = await TargetRow.read(self.database, order.target_id)
        await require_mounted(self.database, target)
        kept = next(
            (each for each in await self.remote.list_manifests(target) if each.snapshot == order.snapshot), None
        )
        if kept is None:
            raise not_found("The manifest is no longer at the target; nothing was changed.")
        opened = await open_manifest(self.remote, target, kept, order.recovery_key(self.remote.sealer))
        # Kept in memory between the steps: the manifest contains every secret of a server, and a restart of the core
        # fails the job anyway.
        self._opened[run.id] = target, opened
        manifest = opened.manifest
        await run.log(
            f"The manifest of {manifest.hostname} of {manifest.taken_at:%Y-%m-%d %H:%M} UTC, by release "
            f"{manifest.release}: {len(manifest.sites)} sites."
        )

    async def put_in_place(self, run: JobRun) -> None:
        target, opened = self._opened.pop(run.id)
        # Checked again, because a site may have been created since the order.
        await require_new(self.database)
        order = RecoveryOrder(
            manifest=opened.manifest,
            target_id=opened.kept.target_id,
            settings=target.settings,
            secret=target.secret(self.remote.sealer),
        )
        await run.log(f"The panel opens again as {opened.manifest.hostname}; a separate job restores its sites.")
        staged = StagedRecovery(self.data_dir)
        # This is the last act of the job: if the job could fail or be cancelled after it, the server would still become
        # the other one at its next start.
        try:
            await trio.to_thread.run_sync(staged.write, order, opened.dump)
        except OSError as error:
            await trio.to_thread.run_sync(staged.clear)
            raise unavailable(f"The manifest could not be put in place: {error}.") from error

    async def ended(self, tx: Transaction, job: Job) -> None:
        self._opened.pop(job.id, None)
        if job.status is JobStatus.SUCCEEDED:
            self.reopen.set()
        else:
            await remove_order(tx)
