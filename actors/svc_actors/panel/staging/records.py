"""Staging copies in the database: one row for each site that has one.

`pushed_job` is the record that decides whether a push counts. It is written in one transaction, after the site has
answered. Files and tables on the disk say what has to be undone, but never whether to undo it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow, announce, read_site, write_changed
from svc_actors.panel.staging.states import IllegalStagingMove, StagingMove, StagingOrder, StagingStatus, move
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict, not_found

_COLUMNS: Final = (
    "site_id, copy_id, status, reason, verifier, job_id, copied, copied_at, pushed_job, pushed_at, created_at"
)

# What to do in states that no job ends.
_HINTS: Final = {
    StagingStatus.FAILED: "Refresh it.",
    StagingStatus.UNDOING: "Its last push is undone as soon as the database server answers.",
}


@dataclass(frozen=True)
class Baseline:
    """The live site at the time of the copy: facts of each table, and a digest of each entry of its files. If the live
    site differs from this, it was changed since (drift)."""

    # The facts of a table are its number of rows, its highest key and a checksum. The digests of files cover names,
    # sizes, modes and times.
    database: str = ""
    prefix: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**stored)

    def with_pushed(self, tables: Mapping[str, str], files: Mapping[str, str]) -> Baseline:
        """The baseline after a push has replaced these tables and entries: the pushed parts do not count as drift."""
        return Baseline(self.database, self.prefix, {**self.tables, **tables}, {**self.files, **files})

    @property
    def stored(self) -> dict[str, Any]:
        return {
            "database": self.database,
            "prefix": self.prefix,
            "tables": dict(self.tables),
            "files": dict(self.files),
        }


@dataclass(frozen=True)
class StagingRow:
    site_id: UUID
    copy_id: UUID
    status: StagingStatus
    reason: str | None
    verifier: str
    job_id: int
    copied: Baseline
    copied_at: datetime | None
    pushed_job: int | None
    pushed_at: datetime | None
    created_at: datetime


async def read_staging(queryable: Queryable, site_id: UUID) -> StagingRow | None:
    row = await queryable.fetchrow(f"SELECT {_COLUMNS} FROM stagings WHERE site_id = $1", site_id)
    return None if row is None else _as_row(row)


async def pending_undos(queryable: Queryable) -> list[StagingRow]:
    """Copies whose last push could not be undone yet."""
    return [_as_row(row) for row in await queryable.fetch(f"SELECT {_COLUMNS} FROM stagings WHERE status = 'undoing'")]


async def staging_of(queryable: Queryable, site: SiteRow) -> StagingRow:
    """Raises not_found if the site has no copy."""
    found = await read_staging(queryable, site.id)
    if found is None:
        raise not_found(f"{site.domain} has no staging copy.", hint=f"Make one: svc site staging create {site.domain}")
    return found


async def pair_of(queryable: Queryable, site_id: UUID) -> tuple[SiteRow, SiteRow, StagingRow]:
    """The live site, its copy, and the record of the copy. Raises not_found."""
    live = await read_site(queryable, site_id)
    if live is None:
        raise not_found("The site no longer exists.")
    found = await staging_of(queryable, live)
    copy = await read_site(queryable, found.copy_id)
    assert copy is not None, "the record goes with the copy"
    return live, copy, found


async def insert_staging(tx: Transaction, live: SiteRow, copy: SiteRow, verifier: str, job_id: int) -> None:
    await tx.execute(
        "INSERT INTO stagings (site_id, copy_id, status, verifier, job_id) VALUES ($1, $2, $3, $4, $5)",
        live.id,
        copy.id,
        move(StagingStatus.NONE, StagingOrder.CREATE).value,
        verifier,
        job_id,
    )
    await tell(tx, live)


async def write_move(
    tx: Transaction, live: SiteRow, by: StagingMove, *, reason: str | None = None, job_id: int | None = None
) -> None:
    """Raises `conflict` if the table has no such move."""
    # The reason is always replaced, even by none, because it is only about the last job. The end of a job does not
    # change `job_id`.
    status = await _moved(tx, live, by)
    await tx.execute(
        "UPDATE stagings SET status = $2, reason = $3, job_id = coalesce($4, job_id) WHERE site_id = $1",
        live.id,
        status.value,
        reason,
        job_id,
    )
    await tell(tx, live)


async def write_copied(tx: Transaction, site_id: UUID, copied: Baseline) -> None:
    # Written before the copy is made, so that changes of the live site in the meantime count as drift. If the copy is
    # not completed, it is failed and cannot be pushed, so this baseline is never used.
    await tx.execute("UPDATE stagings SET copied = $2, copied_at = now() WHERE site_id = $1", site_id, copied.stored)


async def write_pushed(tx: Transaction, site_id: UUID, job_id: int, copied: Baseline) -> None:
    """Record the push: from this commit on it counts, whatever fails later."""
    # Written together with the baseline, in one statement: if the push counted with the old baseline, its own changes
    # would count as drift of the live site.
    await tx.execute(
        "UPDATE stagings SET copied = $3, pushed_job = $2, pushed_at = now() WHERE site_id = $1",
        site_id,
        job_id,
        copied.stored,
    )


async def write_verifier(tx: Transaction, copy: SiteRow, verifier: str) -> None:
    await tx.execute("UPDATE stagings SET verifier = $2 WHERE copy_id = $1", copy.id, verifier)
    await write_changed(tx, copy)


async def remove_staging(tx: Transaction, live: SiteRow) -> None:
    """Deletes the record, and so the copy's role. Raises `conflict` while a job works on it."""
    await _moved(tx, live, StagingOrder.DELETE)
    await tx.execute("DELETE FROM stagings WHERE site_id = $1", live.id)
    await tell(tx, live)


async def was_pushed(queryable: Queryable, job_id: int) -> bool:
    """Whether the push of this job counts."""
    return bool(await queryable.fetchval("SELECT EXISTS (SELECT FROM stagings WHERE pushed_job = $1)", job_id))


async def tell(tx: Transaction, live: SiteRow) -> None:
    """Makes pages that show the site read it again."""
    await announce(tx, live, live.status.value, live.reason)


async def _moved(tx: Transaction, live: SiteRow, by: StagingMove) -> StagingStatus:
    found = await staging_of(tx, live)
    try:
        return move(found.status, by)
    except IllegalStagingMove:
        raise conflict(
            f"The staging copy of {live.domain} is {found.status.value} and cannot be {_doing(by)} now.",
            hint=_HINTS.get(found.status, "Wait for the job that works on it."),
        ) from None


def _doing(by: StagingMove) -> str:
    return {"refresh": "refreshed", "push": "pushed", "delete": "deleted"}.get(by.value, by.value)


def _as_row(row: Record) -> StagingRow:
    told = dict(row)
    return StagingRow(**told | {"status": StagingStatus(told["status"]), "copied": Baseline.of(told["copied"])})
