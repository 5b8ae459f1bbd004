"""Sites fetched from another host by SSH: the keys that it shows, the start of an import, and its job.

The job fetches an archive (`foreign_hosts`), which is then treated like an uploaded one. It may be repeated: a job that
a restart interrupted starts anew. The other host's credentials are sealed, and deleted with the status `fetching`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.imports.analysing import SECONDS as ANALYSIS_SECONDS
from svc_actors.panel.imports.analysing import ImportAnalysis
from svc_actors.panel.imports.foreign_hosts import FETCH_SECONDS, ForeignHosts, HostKey, Remote, Secrets, order_of
from svc_actors.panel.imports.records import (
    FIRST_UID,
    ImportRow,
    insert_fetched,
    lock_import,
    read_import,
    write_job,
    write_move,
)
from svc_actors.panel.imports.states import ImportMove, ImportStatus
from svc_actors.panel.imports.uploads import ARCHIVE, Imports, free_bytes, require_room
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Transaction, audit
from svc_common.errors import conflict, unavailable, wrong_field
from svc_common.outbound import AddressRefused, Outbound
from svc_webhost.folders import HostFolders

KIND: Final = "import.fetch"
SECONDS: Final = FETCH_SECONDS + ANALYSIS_SECONDS
SEALED_FOR: Final = "import by SSH"
_MOST: Final = 64 << 30
_LEFT_FREE: Final = 1 << 30
"""Bytes that fetching a site must leave free on the disk, because the site's size is not known in advance."""


class ForeignSites:
    """One per process."""

    def __init__(
        self, database: Database, sealer: Sealer, hosts: ForeignHosts, outbound: Outbound, imports: Imports
    ) -> None:
        self.database = database
        self.sealer = sealer
        self.hosts = hosts
        self.imports = imports
        self._outbound = outbound

    async def address(self, host: str, port: int) -> str:
        """The address to which to connect, checked again each time. Raises `invalid`."""
        try:
            return (await self._outbound.addresses(host, port))[0]
        except AddressRefused as refused:
            raise wrong_field("host", f"cannot be connected to: {refused}") from refused
        except OSError as error:
            raise wrong_field("host", f"has no address: {error.strerror or error}") from error

    async def keys(self, host: str, port: int) -> list[HostKey]:
        """The host keys of the other host. Raises `unavailable` if it shows none."""
        keys = await self.hosts.keys(await self.address(host, port), port, FIRST_UID)
        if not keys:
            raise unavailable(f"No SSH server answers at {host}, port {port}; nothing was started.")
        return list(keys)

    async def start(self, caller: Caller, owner_id: UUID, remote: Remote, secrets: Secrets) -> ImportRow:
        sealed = self.sealer.seal(secrets.model_dump_json().encode(), SEALED_FOR)
        name = f"{remote.user}@{remote.host}:{remote.folders[0]}"[:200]

        async def write(tx: Transaction) -> ImportRow:
            await require_room(tx, owner_id, 0)
            row = await insert_fetched(tx, owner_id, name, remote.model_dump(mode="json"), sealed)
            job = await _enqueue(tx, row)
            key = HostKey(remote.host_key).fingerprint
            await audit.record(tx, caller, row.target, {"job": job.id, "host_key": key, "domain": remote.domain})
            return await read_import(tx, row.id)

        return await self.database.transact(write)

    async def room(self, row: ImportRow, folder: Path) -> int:
        """How many bytes may be fetched."""
        free = await trio.to_thread.run_sync(free_bytes, folder) - _LEFT_FREE

        async def allowed(tx: Transaction) -> int:
            left = await require_room(tx, row.owner_id, 0, more=False)
            return min(free, _MOST, _MOST if left is None else left)

        most: int = await self.database.transact(allowed)
        if most <= 0:
            raise conflict("There is no room for the site: the disk is full, or the plan of its owner is used up.")
        return most


class ImportFetch:
    """The work of the job."""

    def __init__(self, sites: ForeignSites, analysis: ImportAnalysis, folders: HostFolders) -> None:
        self._sites = sites
        self._analysis = analysis
        self._folders = folders

    async def fetch(self, run: JobRun) -> None:
        row = await read_import(self._sites.database, UUID(run.parameters["import"]))
        if row.status is not ImportStatus.FETCHING:
            return
        assert row.sealed_secret is not None
        remote = Remote.model_validate(row.remote)
        secrets = Secrets.model_validate_json(self._sites.sealer.unseal(row.sealed_secret, SEALED_FOR))
        address = await self._sites.address(remote.host, remote.port)
        folder = await self._sites.imports.create_folder(row)
        most = await self._sites.room(row, folder.path)
        await self._sites.hosts.fetch(run, folder, order_of(remote, secrets, address, most))
        size = (await trio.Path(folder.path / ARCHIVE).stat()).st_size

        async def write(tx: Transaction) -> None:
            locked = await lock_import(tx, row.id)
            if locked.status is ImportStatus.FETCHING:
                await write_move(tx, locked, ImportMove.WHOLE)
                await write_job(tx, row.id, run.id, size)

        await run.transact(write)
        await run.log(f"{size:,} bytes were fetched.")

    async def read(self, run: JobRun) -> None:
        await self._analysis.read(run)

    async def ended(self, tx: Transaction, job: Job) -> None:
        row = await tx.fetchval("SELECT id FROM imports WHERE id = $1", UUID(job.parameters["import"]))
        if row is None or job.status is JobStatus.SUCCEEDED:
            return
        locked = await lock_import(tx, row)
        if locked.status is not ImportStatus.FETCHING:
            await self._analysis.ended(tx, job)
        elif job.error == INTERRUPTED:
            await _enqueue(tx, locked)
        else:
            problem = job.error.message if job.error is not None else "Fetching was cancelled."
            await write_move(tx, locked, ImportMove.BROKEN, problem=problem)


async def _enqueue(tx: Transaction, row: ImportRow) -> Job:
    new = NewJob(
        kind=KIND,
        title=f"Fetch {row.name}"[:200],
        job_class=JobClass.MIGRATIONS,
        steps=("fetch", "read"),
        owner_id=row.owner_id,
        parameters={"import": str(row.id)},
    )
    job = await enqueue(tx, new)
    await write_job(tx, row.id, job.id)
    return job
