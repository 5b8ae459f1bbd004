"""The job that reads an archive, in a process that can only report its content (`svc_webhost.confined.survey`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.imports.records import ImportRow, lock_import, read_import, write_found, write_job, write_move
from svc_actors.panel.imports.states import ImportMove, ImportStatus
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, ProgramFailed, enqueue
from svc_actors.store import Database, Transaction
from svc_common.errors import conflict, invalid
from svc_webhost import confined
from svc_webhost.archives.model import account_of
from svc_webhost.folders import HostFolders
from svc_webhost.php import PhpSettings

KIND: Final = "import.analyse"
SECONDS: Final = 3600.0
_SURVEY: Final = Path(confined.__file__).with_name("survey.py")
_PART: Final = "part "
_MOST_ANSWERED: Final = 16 << 20


async def start_analysis(tx: Transaction, locked: ImportRow, *, sha256: str | None = None) -> Job:
    """Raises `conflict`."""
    job = await _enqueue(tx, locked)
    await write_move(tx, locked, ImportMove.WHOLE, job_id=job.id, sha256=sha256)
    return job


async def _enqueue(tx: Transaction, row: ImportRow) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Read {row.name}"[:200],
            job_class=JobClass.MIGRATIONS,
            steps=("read",),
            owner_id=row.owner_id,
            parameters={"import": str(row.id)},
        ),
    )


class ImportAnalysis:
    """The work of the job."""

    def __init__(self, database: Database, folders: HostFolders) -> None:
        self._database = database
        self._folders = folders

    async def read(self, run: JobRun) -> None:
        row = await read_import(self._database, UUID(run.parameters["import"]))
        folder = row.folder(self._folders)
        parts: list[str] = []
        size = 0

        async def take(lines: list[str]) -> None:
            nonlocal size
            for line in lines:
                if line.startswith(_PART):
                    size += len(line)
                    parts.append(line[len(_PART) :])
                else:
                    await run.log(line)
            if size > _MOST_ANSWERED:
                raise conflict("The archive has more contents than an account can have; no plan was made.")

        settings = PhpSettings().model_dump(mode="json")
        order = json.dumps({"uid": folder.uid, "gid": folder.gid, "settings": settings})
        command = (sys.executable, "-I", "-S", "-X", "utf8", str(_SURVEY), order)
        try:
            await run.program(command, seconds=SECONDS, stdin=folder.path / "archive", read=take)
        except ProgramFailed as failed:
            why = failed.last if not failed.last.startswith(_PART) else failed.message
            raise invalid(f"The archive was not read: {why}", hint="Nothing was unpacked.") from failed
        found = _checked("".join(parts))
        account = account_of(found)

        async def write(tx: Transaction) -> None:
            locked = await lock_import(tx, row.id)
            if locked.status is ImportStatus.ANALYSING:
                await write_found(tx, row.id, found, row.size)
                await write_move(tx, locked, ImportMove.READ)

        await run.transact(write)
        await run.log(
            f"A backup of the format {account.format}: {len(account.sites)} sites, {len(account.databases)} databases, "
            f"{len(account.zones)} zones."
        )

    async def ended(self, tx: Transaction, job: Job) -> None:
        """An interrupted analysis starts anew: reading changes nothing."""
        row = await tx.fetchval("SELECT id FROM imports WHERE id = $1", UUID(job.parameters["import"]))
        if row is None or job.status is JobStatus.SUCCEEDED:
            return
        locked = await lock_import(tx, row)
        if locked.status is not ImportStatus.ANALYSING:
            return
        if job.error == INTERRUPTED:
            await write_job(tx, locked.id, (await _enqueue(tx, locked)).id)
            return
        problem = job.error.message if job.error is not None else "Reading was cancelled."
        await write_move(tx, locked, ImportMove.BROKEN, problem=problem)


def _checked(text: str) -> dict[str, Any]:
    """Raises `invalid`: the process's output is under control of the archive's author."""
    try:
        found: dict[str, Any] = json.loads(text)
        account_of(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid("The archive was not read: its contents are not an account.") from error
    return found
