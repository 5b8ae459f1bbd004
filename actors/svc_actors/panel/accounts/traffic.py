"""What visitors were sent, by site and month, from the web server's logs.

Each site's log is read on from where it was read to. What was counted and up to where are written in one transaction:
no line counts twice, and none is left out, also when a log was rotated or the core killed in between. The month is that
of the line. Of a site that is deleted, what it had been sent stays counted for its account; what it was sent in the
last minutes is not counted any more.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.folders import HostFolders
from svc_actors.host.log_files import LogPart, read_on
from svc_actors.store import Database, Transaction

ROUND_SECONDS: Final = 300.0
_LINES: Final = 20_000
"""Read at once, of one log."""
_LINE: Final = re.compile(r'\[\d\d/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):[^\]]*\] "[^"]*" \d{3} (?P<bytes>\d+) ')
"""Of nginx's format "combined". It writes a quotation mark of a visitor's as \\x22, so nobody forges the rest."""
_MONTHS: Final = {
    name: number
    for number, name in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1)  # noqa: SIM905
}


class TrafficCount:
    def __init__(self, database: Database, folders: HostFolders) -> None:
        self._database = database
        self._folders = folders

    async def round(self) -> None:
        """Count what has come to every site since the last round."""
        for row in await self._database.fetch(
            """SELECT sites.id, sites.number, counted.cursor
               FROM sites LEFT JOIN site_traffic_counted AS counted ON counted.site_id = sites.id
               ORDER BY sites.number"""
        ):
            await self._count(row["id"], SiteAccount(row["number"]), row["cursor"])

    async def _count(self, site_id: UUID, account: SiteAccount, cursor: str | None) -> None:
        log = self._folders.site_logs / account.name / "access.log"
        while True:
            part = await trio.to_thread.run_sync(_read, log, cursor)
            if part.cursor is None or part.cursor == cursor:
                return
            await self._write(site_id, cursor, part)
            cursor = part.cursor
            if not part.more:
                return

    async def _write(self, site_id: UUID, before: str | None, part: LogPart) -> None:
        sums = _sums(part.lines)

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
                return  # Somebody else has counted these.
            for month, (requests, size) in sums.items():
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

        await self._database.transact(work)


def _read(log: Path, cursor: str | None) -> LogPart:
    return read_on(log, after=cursor, most=_LINES)


def _sums(lines: list[str]) -> dict[date, tuple[int, int]]:
    """Requests and bytes by month."""
    sums: defaultdict[date, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for line in lines:
        found = _LINE.search(line)
        if found is None or found["month"] not in _MONTHS:
            continue
        month = date(int(found["year"]), _MONTHS[found["month"]], 1)
        requests, size = sums[month]
        sums[month] = (requests + 1, size + int(found["bytes"]))
    return dict(sums)
