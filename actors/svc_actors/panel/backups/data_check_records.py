"""Which data of backups was read, and what comes next: the only writer of `backup_data_checks`.

A repository on this server and each of its copies at a target is a *place*, with one row. Each week a round reads one
of four shares of the place's data, so that four weeks read all of it. A share with damage is read again in each round,
until it passes.

A round is cut into parts, each read by a job of its own, so that a large repository never holds up other backups for
long. restic puts a pack into part n of t by the first byte of its name, modulo t. Therefore the parts n, n + 4, n + 8
of 4, 8, 12, ... parts together have exactly the packs of share n of 4.

Invariants:
- at most one job reads (`job_id`), and its outcome is written in the transaction that releases it: a job that a restart
  cut short has changed nothing, and the same part is read again;
- an order ends the round that runs, and the next one starts anew, whatever a job reads meanwhile;
- the alert of a place is open while a share of it is damaged, and is written with `damaged`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobStatus, NewJob, enqueue
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import not_found

CHECK_DATA: Final = "backup.check_data"
CHECK_DATA_STEPS: Final = ("read",)
SHARES: Final = 4
MOST_PARTS: Final = 256
"""restic's limit."""
PLACE_REMOVED: Final = "The repository or the target was removed."
_NAMES_PACKS: Final = re.compile(r"restic names the packs? ")
_COLUMNS: Final = "id, repository_id, target_id, share, parts, unread, found, damaged, report, read_at"


@dataclass(frozen=True)
class DataCheckRow:
    """`parts` is None while no round runs; `unread` then is empty. `report`: the packs that restic named as damaged."""

    id: UUID
    repository_id: UUID
    target_id: UUID | None
    share: int
    parts: int | None
    unread: tuple[int, ...]
    found: frozenset[int]
    damaged: frozenset[int]
    report: str | None
    read_at: datetime | None

    @property
    def alert(self) -> str:
        return f"{data_alerts(self.repository_id)}{self.target_id or 'here'}"


def data_alerts(repository_id: UUID) -> str:
    """Prefix of the keys of alerts about damaged data of a repository."""
    return f"backup-data:{repository_id}:"


def share_of(part: int) -> int:
    return (part - 1) % SHARES + 1


def parts_of(size: int, most: int) -> int:
    """Into how many parts `size` bytes are cut, so that one has `most` bytes on average."""
    wanted = -(-size // most)
    return min(max(SHARES, -(-wanted // SHARES) * SHARES), MOST_PARTS)


def round_parts(parts: int, shares: Collection[int]) -> list[int]:
    """The parts that have the data of these shares."""
    return [part for part in range(1, parts + 1) if share_of(part) in shares]


async def start_due_data_check(tx: Transaction) -> None:
    """Queue the job that reads the next part of a place, if one is due and no such job is open. A round that was
    started is ended before another place has its turn, since its cache is kept between its parts."""
    await _add_places(tx)
    if await tx.fetchval(
        """SELECT true FROM backup_data_checks JOIN jobs ON jobs.id = job_id
           WHERE jobs.status IN ('queued', 'running') LIMIT 1"""
    ):
        return
    due = await tx.fetchrow(
        """SELECT checks.id, sites.id AS site_id, sites.domain, backup_targets.name
           FROM backup_data_checks AS checks
           JOIN backup_repositories ON backup_repositories.id = repository_id
           JOIN sites ON sites.id = backup_repositories.site_id
           LEFT JOIN backup_targets ON backup_targets.id = target_id
           WHERE checks.next_run_at <= now() AND sites.status IN ('active', 'suspended')
           ORDER BY checks.parts IS NULL, checks.next_run_at LIMIT 1 FOR UPDATE OF checks"""
    )
    if due is None:
        return
    at = "" if due["name"] is None else f" at {due['name']}"
    job = await enqueue(
        tx,
        NewJob(
            kind=CHECK_DATA,
            title=f"Read a part of the backups of {due['domain']}{at}"[:200],
            job_class=JobClass.BACKUPS,
            steps=CHECK_DATA_STEPS,
            # As a job of the site it never runs while another job changes the repository.
            site_id=due["site_id"],
        ),
    )
    await tx.execute("UPDATE backup_data_checks SET job_id = $2 WHERE id = $1", due["id"], job.id)


async def _add_places(tx: Transaction) -> None:
    """Add places that have a complete backup by now. They are due at some time of the next week, each at its own."""
    await tx.execute(
        """INSERT INTO backup_data_checks (repository_id, target_id, next_run_at)
           SELECT repository_id, target_id, now() + random() * interval '7 days' FROM (
               SELECT DISTINCT repository_id, NULL::uuid AS target_id FROM site_backups WHERE status = 'completed'
               UNION
               SELECT DISTINCT repository_id, target_id FROM backup_copies
               JOIN site_backups ON site_backups.id = backup_id
               WHERE site_backups.status = 'completed' AND backup_copies.error IS NULL
           ) AS places
           WHERE NOT EXISTS (SELECT FROM backup_data_checks AS known
                             WHERE known.repository_id = places.repository_id
                               AND known.target_id IS NOT DISTINCT FROM places.target_id)
           ON CONFLICT DO NOTHING"""
    )


async def order_data_check(tx: Transaction, repository: RepositoryRow) -> int:
    """Make the next round of all places of a repository due now. A round that runs is ended: it may have read a damaged
    share before that was repaired. Raises not_found if the repository has no complete backup yet."""
    await _add_places(tx)
    ordered = await tx.change(
        """UPDATE backup_data_checks SET parts = NULL, unread = '{}', found = '{}', next_run_at = now()
           WHERE repository_id = $1""",
        repository.id,
    )
    if not ordered:
        raise not_found("There is no completed backup whose data could be read.", hint="Back up the site first.")
    return ordered


async def check_of_job(queryable: Queryable, job_id: int) -> DataCheckRow | None:
    """What a job reads; None if its place was removed meanwhile."""
    row = await queryable.fetchrow(f"SELECT {_COLUMNS} FROM backup_data_checks WHERE job_id = $1", job_id)
    return None if row is None else _as_check(row)


async def size_by_records(queryable: Queryable, repository_id: UUID) -> int:
    """About the bytes of all complete backups of a repository: those of the largest one, and what each later one than
    the first has added. It is more than restic stores, which compresses them."""
    return int(
        await queryable.fetchval(
            """SELECT coalesce(max(bytes), 0) + coalesce(sum(added_bytes) FILTER (WHERE number > 1), 0) FROM (
                   SELECT bytes, added_bytes, row_number() OVER (ORDER BY created_at, id) AS number
                   FROM site_backups WHERE repository_id = $1 AND status = 'completed'
               ) AS backups""",
            repository_id,
        )
    )


async def start_round(tx: Transaction, check: DataCheckRow, parts: int) -> DataCheckRow:
    """Start a round, which reads the share whose turn it is, and those that were damaged. Returns the place with it.
    Raises not_found if the place was removed meanwhile."""
    row = await tx.fetchrow(
        f"UPDATE backup_data_checks SET parts = $2, unread = $3, found = '{{}}' WHERE id = $1 RETURNING {_COLUMNS}",
        check.id,
        parts,
        round_parts(parts, {check.share, *check.damaged}),
    )
    if row is None:
        raise not_found(PLACE_REMOVED)
    return _as_check(row)


async def write_part(
    tx: Transaction, job_id: int, part: int, report: str | None, repository: RepositoryRow, place: str
) -> bool:
    """Record that the job has read a part; with `report` if it is damaged. Opens or closes the place's alert. Returns
    whether this ends the round. `place`: where the data is, as the alert names it."""
    row = await tx.fetchrow(f"SELECT {_COLUMNS} FROM backup_data_checks WHERE job_id = $1 FOR UPDATE", job_id)
    if row is None:
        return False  # Recorded by an attempt whose commit was not answered, or the place was removed.
    check = _as_check(row)
    if check.parts is None:
        return await _write_late_part(tx, check, part, report, repository, place)
    share = share_of(part)
    unread = [each for each in check.unread if each != part]
    found, damaged = set(check.found), set(check.damaged)
    if report is not None:
        found.add(share)
        damaged.add(share)
    elif share not in found and all(share_of(each) != share for each in unread):
        damaged.discard(share)
    ended = not unread
    told = report or (check.report if damaged else None)
    await tx.execute(
        """UPDATE backup_data_checks
           SET unread = $2, parts = CASE WHEN $3 THEN NULL ELSE parts END, found = $4, damaged = $5, report = $6,
               share = CASE WHEN $3 THEN share % $7 + 1 ELSE share END,
               next_run_at = CASE WHEN $3 THEN now() + interval '7 days' ELSE next_run_at END,
               read_at = CASE WHEN $3 THEN now() ELSE read_at END, error = NULL, job_id = NULL
           WHERE id = $1""",
        check.id,
        unread,
        ended,
        [] if ended else sorted(found),
        sorted(damaged),
        told,
        SHARES,
    )
    await _write_alert(tx, check, sorted(damaged), told or "", repository, place)
    return ended


async def _write_late_part(
    tx: Transaction, check: DataCheckRow, part: int, report: str | None, repository: RepositoryRow, place: str
) -> bool:
    """The round was ended by an order while the part was read: the next one reads it again. Damage counts."""
    damaged = sorted({*check.damaged, *([] if report is None else [share_of(part)])})
    told = report or check.report
    await tx.execute(
        "UPDATE backup_data_checks SET damaged = $2, report = $3, error = NULL, job_id = NULL WHERE id = $1",
        check.id,
        damaged,
        told,
    )
    await _write_alert(tx, check, damaged, told or "", repository, place)
    return True


async def _write_alert(
    tx: Transaction, check: DataCheckRow, damaged: Sequence[int], report: str, repository: RepositoryRow, place: str
) -> None:
    if not damaged:
        await close_alert(tx, check.alert)
        return
    message = await _message(tx, check, damaged, report, repository, place)
    await raise_alert(tx, check.alert, message, resource_kind="site", resource_id=repository.site_id)


async def _message(
    tx: Transaction, check: DataCheckRow, damaged: Sequence[int], report: str, repository: RepositoryRow, place: str
) -> str:
    others = await tx.fetch(
        """SELECT coalesce(backup_targets.name, 'this server') AS name
           FROM backup_data_checks AS checks LEFT JOIN backup_targets ON backup_targets.id = target_id
           WHERE repository_id = $1 AND checks.id <> $2 AND damaged = '{}' ORDER BY name""",
        check.repository_id,
        check.id,
    )
    whole = (
        f"No damage is known of the copies on {', '.join(row['name'] for row in others)}."
        if others
        else "There is no other copy that is known to be whole."
    )
    numbers = ", ".join(map(str, damaged))
    # A copy is worth removing only if restic has named what is damaged in it.
    do = (
        "Remove that folder there: the next backup copies everything again."
        if check.target_id is not None
        and _NAMES_PACKS.match(report)
        and any(row["name"] == "this server" for row in others)
        else "Repair it as docs/site-backups.md, Damaged data, says: until then no backup stores again what was there."
    )
    return (
        f"Backups of {repository.domain} are damaged {place}: {report} (share {numbers} of {SHARES} of the data). "
        f"Files in other data can be restored; a restoration that needs damaged data fails, and changes nothing. "
        f"{whole} {do} Afterwards `svc backup data check {repository.domain}` reads it again."
    )[:2000]


async def end_data_check(tx: Transaction, job: Job) -> None:
    """Record the end of a job that has not read its part. One that a restart cut short is due again at once, and so is
    one during which a reading was ordered; others the next day."""
    if job.status is JobStatus.SUCCEEDED:
        return
    interrupted = job.error is not None and job.error.message == INTERRUPTED.message
    await tx.execute(
        """UPDATE backup_data_checks
           SET job_id = NULL, error = CASE WHEN $2 THEN error ELSE $3 END,
               next_run_at = CASE WHEN $2 OR next_run_at > $4 THEN next_run_at ELSE now() + interval '1 day' END
           WHERE job_id = $1""",
        job.id,
        interrupted,
        job.error.message[:1000] if job.error is not None else "It was cancelled.",
        job.created_at,
    )


async def forget_place(tx: Transaction, target_id: UUID) -> None:
    """A target is removed: close the alerts about damaged data there."""
    rows = await tx.fetch(f"SELECT {_COLUMNS} FROM backup_data_checks WHERE target_id = $1", target_id)
    for check in map(_as_check, rows):
        await close_alert(tx, check.alert)


def _as_check(row: Record) -> DataCheckRow:
    return DataCheckRow(
        id=row["id"],
        repository_id=row["repository_id"],
        target_id=row["target_id"],
        share=row["share"],
        parts=row["parts"],
        unread=tuple(row["unread"]),
        found=frozenset(row["found"]),
        damaged=frozenset(row["damaged"]),
        report=row["report"],
        read_at=row["read_at"],
    )
