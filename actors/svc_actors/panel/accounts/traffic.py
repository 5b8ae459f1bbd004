"""Counts the traffic of each site by month, from the web server's logs.

Each log is read on from where the last round stopped. The counts and the new position are written in one transaction,
so each line counts exactly once, even if the log was rotated or the core killed in between. The month is that of the
line. The traffic of a deleted site stays counted for its account, except that of its last minutes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.store import Database, Transaction
from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.log_files import BadCursorError, LogPart, read_on

ROUND_SECONDS: Final = 300.0
_LINES: Final = 20_000
"""The most lines of one log that are read at once."""
_TIME: Final = re.compile(
    r"(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d) (?P<offset>[+-]\d{4})", re.ASCII
)
_LONGEST_NUMBER: Final = 15
_MONTHS: Final = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)  # noqa: SIM905
}

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TrafficCount:
    def __init__(self, database: Database, folders: HostFolders) -> None:
        self._database = database
        self._folders = folders

    async def round(self) -> None:
        """Count the traffic of every site since the last round. A log that cannot be read is named in the service's own
        log and tried again in the next round; the other sites are counted."""
        for row in await self._database.fetch(
            """SELECT sites.id, sites.number, counted.cursor
               FROM sites LEFT JOIN site_traffic_counted AS counted ON counted.site_id = sites.id
               ORDER BY sites.number"""
        ):
            await self._count(row["id"], SiteAccount(row["number"]), row["cursor"])

    async def _count(self, site_id: UUID, account: SiteAccount, cursor: str | None) -> None:
        log = self._folders.site_logs / account.name / "access.log"
        while True:
            try:
                part, counted = await trio.to_thread.run_sync(_read, log, cursor)
            except (OSError, BadCursorError) as error:
                _log.warning("traffic.log_unreadable", site=account.name, log=str(log), error=str(error))
                return
            if part.cursor is None or part.cursor == cursor:
                return
            await self._write(site_id, cursor, part, counted)
            cursor = part.cursor
            if not part.more:
                return

    async def _write(
        self, site_id: UUID, before: str | None, part: LogPart, counted: Mapping[date, tuple[int, int]]
    ) -> None:
        async def work(tx: Transaction) -> None:
            owner_id = await tx.fetchval("SELECT owner_id FROM sites WHERE id = $1 FOR KEY SHARE", site_id)
            if owner_id is None:
                return
            moved = await tx.fetchval(
                """INSERT INTO site_traffic_counted AS counted (site_id, cursor) VALUES ($1, $2)
                   ON CONFLICT (site_id) DO UPDATE SET cursor = excluded.cursor
                   WHERE counted.cursor IS NOT DISTINCT FROM $3 RETURNING true""",
                site_id,
                part.cursor,
                before,
            )
            if not moved:
                return  # Another round has counted these lines already.
            for month, (requests, size) in counted.items():
                await tx.execute(
                    """INSERT INTO site_traffic AS held (site_id, month, requests, bytes) VALUES ($1, $2, $3, $4)
                       ON CONFLICT (site_id, month) DO UPDATE
                       SET requests = held.requests + excluded.requests, bytes = held.bytes + excluded.bytes""",
                    site_id,
                    month,
                    requests,
                    size,
                )
                await tx.execute(
                    """INSERT INTO account_traffic AS held (user_id, month, requests, bytes) VALUES ($1, $2, $3, $4)
                       ON CONFLICT (user_id, month) DO UPDATE
                       SET requests = held.requests + excluded.requests, bytes = held.bytes + excluded.bytes""",
                    owner_id,
                    month,
                    requests,
                    size,
                )

        async def count(tx: Transaction) -> None:
            with tx.unmarked():
                await work(tx)

        await self._database.transact(count)


def _read(log: Path, cursor: str | None) -> tuple[LogPart, Mapping[date, tuple[int, int]]]:
    part = read_on(log, after=cursor, most=_LINES)
    return part, sums(part.lines)


def sums(lines: Iterable[str]) -> dict[date, tuple[int, int]]:
    """Requests and bytes by month. Months are those of UTC wherever the server stands."""
    found: defaultdict[date, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for line in lines:
        sent = _sent(line)
        if sent is not None:
            requests, size = found[sent[0]]
            found[sent[0]] = (requests + 1, size + sent[1])
    return dict(found)


def _sent(line: str) -> tuple[date, int] | None:
    """The month and the bytes of a line of nginx's format `svc`; None for any other.

    The user name stands before the time, and the visitor chooses it: it may contain brackets, but nginx escapes
    quotation marks in it. So the time ends at the first `] "`, and starts after the last bracket before that. A search
    for anything that looks like a time would find one in the user name, and took time quadratic in the length of the
    line."""
    before, ends, rest = line.partition('] "')
    status, _, others = rest.partition('" ')[2].partition(" ")
    size = others.partition(" ")[0]
    month = _month(before.rpartition("[")[2]) if ends else None
    if month is None or len(status) != 3 or len(size) > _LONGEST_NUMBER or not (size.isascii() and size.isdigit()):
        return None
    return month, int(size)


@lru_cache(maxsize=1024)
def _month(local: str) -> date | None:
    """The month of a time as nginx's `$time_local` has it: 30/Nov/2026:23:59:59 -0800."""
    found = _TIME.fullmatch(local)
    if found is None or found["month"] not in _MONTHS:
        return None
    try:
        moment = datetime.fromisoformat(
            f"{found['year']}-{_MONTHS[found['month']]:02}-{found['day']}T{found['time']}{found['offset']}"
        )
        return moment.astimezone(UTC).date().replace(day=1)
    except (ValueError, OverflowError):
        return None
