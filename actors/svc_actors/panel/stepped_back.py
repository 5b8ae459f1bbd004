"""The first transaction of a panel whose database has lost its last commits, before anybody is served.

The server may be ahead of the records. So no name on the server (of a unit, folder or account, for example) is used a
second time, and no work that may have been done is repeated. Numbers of sites and imports continue above those that
have a folder or an account here, ids of jobs and of schedule runs above any that can have been lost. Queued and running
jobs end like those of a killed core, and due schedules count as missed.

Sites without a record stay as they are, and an alert names them for as long as they are there (`UnrecordedSites`).
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import trio

from svc_actors.alerts import Severity, close_alert, raise_alert, set_alert
from svc_actors.panel.jobs.records import start_jobs
from svc_actors.panel.schedules.scheduler import record_missed_runs
from svc_actors.store import Database, Queryable, Transaction
from svc_webhost.folders import HostFolders

ALERT: Final = "database-stepped-back"
UNRECORDED_ALERT: Final = "sites-unrecorded"
ROUND_SECONDS: Final = 300.0
SHOWN_FOR: Final = timedelta(days=1)
"""How long the alert about the step back stays open: it only has to be read."""
MARGIN: Final = 100
"""How many numbers to skip above the highest number seen here: a site's files may be gone while other traces of it
exist."""
SKIPPED: Final = {"jobs_id_seq": 10_000, "schedule_runs_id_seq": 10_000, "imports_number_seq": MARGIN}
"""How far to advance the sequences whose numbers are used in names of systemd units, scratch databases and folders.
Numbers of other sequences are used only inside the database."""
_SITE, _IMPORT = re.compile(r"s([1-9][0-9]{0,8})"), re.compile(r"i([1-9][0-9]{0,8})")
_MOST_NAMED: Final = 20


@dataclass(frozen=True)
class UsedNumbers:
    """Numbers of sites and imports with a folder or an account on this server; `homes`: those of sites with files."""

    homes: frozenset[int]
    sites: frozenset[int]
    imports: frozenset[int]

    @classmethod
    def on(cls, folders: HostFolders) -> UsedNumbers:
        """Raises `OSError`."""
        accounts = [entry.pw_name for entry in pwd.getpwall()]
        return cls(
            frozenset(_site_folders(folders.sites)),
            frozenset(_numbers(_SITE, [*_names(folders.sites), *_names(folders.site_logs), *accounts])),
            frozenset(_numbers(_IMPORT, [*_names(folders.imports), *accounts])),
        )


async def recover_stepped_back(tx: Transaction, *, as_of: datetime, now: datetime, numbers: UsedNumbers) -> None:
    """Recover from a database that has lost its last commits. Only writes to the database. `as_of`: the newest time in
    the database."""
    queued = await tx.fetch("SELECT id FROM jobs WHERE status = 'queued' ORDER BY id FOR UPDATE")
    # Queued jobs are marked as running here. The start of the service then fails all running jobs, with everything that
    # follows from a failed job.
    await start_jobs(tx, [row["id"] for row in queued])
    await record_missed_runs(tx, now)
    for sequence, count in SKIPPED.items():
        await _skip(tx, sequence, count)
    for sequence, seen in (("site_numbers", numbers.sites), ("imports_number_seq", numbers.imports)):
        last = await tx.fetchval(f"SELECT last_value FROM {sequence}")
        await _skip(tx, sequence, max(max(seen, default=0) - last, 0) + MARGIN)
    await raise_alert(
        tx,
        ALERT,
        f"The panel's database has lost its last commits and shows {as_of:%Y-%m-%d %H:%M} UTC. Jobs that were under "
        "way are ended, everybody signs in again, and what was changed since has to be changed again.",
        severity=Severity.CRITICAL,
    )
    await _point_out(tx, sorted(numbers.homes - await _recorded(tx)))


@dataclass(frozen=True)
class UnrecordedSites:
    """Alerts about sites that exist on this server but not in the database."""

    database: Database
    folders: HostFolders

    async def round(self) -> None:
        before = await trio.to_thread.run_sync(_site_folders, self.folders.sites)
        known = await _recorded(self.database)
        # A site's record is written before its folder and removed after it. So a folder without a record is left over
        # if it exists both before and after the records are read.
        left = before & await trio.to_thread.run_sync(_site_folders, self.folders.sites) - known
        await self.database.transact(lambda tx: _point_out(tx, sorted(left)))


async def _point_out(tx: Transaction, left: list[int]) -> None:
    message = None
    if left:
        named = ", ".join(f"s{number}" for number in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        message = (
            f"This server has the files of sites that the panel has no record of: {named}{more}. Their numbers are "
            "not assigned again, and nothing was changed. Create such a site again and copy its files, or remove its "
            "account (userdel), its folder and its logs."
        )
    await set_alert(tx, UNRECORDED_ALERT, message, severity=Severity.CRITICAL)
    old = "SELECT EXISTS (SELECT FROM alerts WHERE key = $1 AND closed_at IS NULL AND opened_at < now() - $2::interval)"
    if await tx.fetchval(old, ALERT, SHOWN_FOR):
        await close_alert(tx, ALERT)


async def _recorded(queryable: Queryable) -> set[int]:
    return {row["number"] for row in await queryable.fetch("SELECT number FROM sites")}


async def _skip(tx: Transaction, sequence: str, count: int) -> None:
    """Skip numbers by drawing them, because the service's database role may not set a sequence."""
    await tx.fetchval("SELECT max(nextval($1::text::regclass)) FROM generate_series(1, $2::integer)", sequence, count)


def _site_folders(folder: Path) -> set[int]:
    return set(_numbers(_SITE, _names(folder)))


def _numbers(pattern: re.Pattern[str], names: list[str]) -> Iterator[int]:
    for name in names:
        if match := pattern.fullmatch(name):
            yield int(match[1])


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
