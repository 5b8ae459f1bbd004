"""Names the site or visitor that uses most of a shared resource: the likely cause when a server is slow.

The name changes no status: a site may use what its limits allow. Checks report it while they are ok, too, because
visitors of other sites may notice a slow server before any resource runs out.

Use is read from control groups and not from the sum of the processes: programs that have exited count, and so does
memory that belongs to no process (memfd, tmpfs). Without control groups no site is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from svc_actors.store import Database
from svc_webhost.databases import CONNECTIONS, DatabaseError, DatabaseServers
from svc_webhost.site_use import SiteUse
from svc_webhost.vitals import Vitals

# Below these limits no site is named: even on a quiet server some site is always the busiest.
_NOTABLE_SHARE: Final = 0.25
"""Share of one processor, measured between two looks."""
_NOTABLE_BYTES: Final = 256 << 20
_NOTABLE_WRITES: Final = 4 << 20
"""Bytes written per second, measured between two looks."""
_NOTABLE_SESSIONS: Final = 2 / 3
"""Share of the sessions that one site may have on a database server."""
_NOTABLE_CALLER: Final = 200
"""Connections of one visitor. For comparison: a browser opens six per site."""
_NOTABLE_JOBS: Final = 5
# Shorter than the 5 s after which the health check calls a database server silent: finding the name must not make the
# check miss its own deadline.
_ANSWER_SECONDS: Final = 2.0
_NAMED: Final = 3


@dataclass(frozen=True)
class UseSample:
    """Resource use of a site now and at the previous look, `seconds` earlier."""

    now: SiteUse
    before: SiteUse
    seconds: float

    @property
    def processor(self) -> float:
        """Processor use, as a share of one processor."""
        return max(0.0, (self.now.processor_seconds or 0) - (self.before.processor_seconds or 0)) / self.seconds

    @property
    def writes(self) -> float:
        """Bytes per second, without processes that have exited since."""
        # max: the control group's counter starts from zero again if the group was removed and created anew, and the
        # difference would be negative.
        return max(0, (self.now.written_bytes or 0) - (self.before.written_bytes or 0)) / self.seconds

    @property
    def was_killed(self) -> bool:
        return (self.now.killed or 0) > (self.before.killed or 0)

    @property
    def was_refused(self) -> bool:
        return (self.now.refused or 0) > (self.before.refused or 0)


@dataclass
class SiteLooks:
    """Compares each look at the sites with the previous one."""

    vitals: Vitals
    _before: Mapping[int, SiteUse] = field(default_factory=dict)
    _at: float | None = None

    async def changed(self) -> dict[int, UseSample]:
        """Sites with running processes, by number. A site seen for the first time counts as unchanged, because its
        control group may be older than this process."""
        now = await trio.to_thread.run_sync(self.vitals.sites)
        # Sites that are not running now stay in `_before`: a site that stops and starts again is compared with its last
        # known figures.
        at, before = self._at, self._before
        self._at, self._before = trio.current_time(), {**before, **now}
        seconds = 1.0 if at is None else max(self._at - at, 0.001)
        return {number: UseSample(use, before.get(number, use), seconds) for number, use in now.items()}


@dataclass
class TopConsumers:
    """Each method serves one check, once a minute, and returns a sentence with a leading space, or nothing."""

    database: Database
    vitals: Vitals
    databases: DatabaseServers
    ended: Mapping[str, int]
    """Number of database sessions that were terminated for their memory use, by site account."""
    ports: Collection[int]
    """The web server's ports."""

    def __post_init__(self) -> None:
        # Each check has its own instance: if they shared one, the second check of a round would measure a difference
        # over almost no time.
        self._processor, self._memory, self._disk = (SiteLooks(self.vitals) for _ in range(3))
        self._ended_before: Mapping[str, int] = dict(self.ended)

    async def of_processor(self) -> str:
        changed = await self._processor.changed()
        said = ""
        number = max(changed, key=lambda each: changed[each].processor, default=None)
        if number is not None and changed[number].processor >= _NOTABLE_SHARE:
            said = f" {await self._name(number)} uses {100 * changed[number].processor:.0f} % of one processor."
        if refused := await self._names(number for number, use in changed.items() if use.was_refused):
            said += f" {refused} reached the process limit."
        return said

    async def of_memory(self) -> str:
        """Sites that hit a limit come before the largest one."""
        changed = await self._memory.changed()
        said = ""
        if killed := await self._names(number for number, use in changed.items() if use.was_killed):
            said = f" Programs were killed at the memory limit of {killed}."
        # A copy, because the watch over sessions keeps counting in the same mapping.
        before, self._ended_before = self._ended_before, dict(self.ended)
        grown = [account for account, count in self._ended_before.items() if count > before.get(account, 0)]
        if ended := await self._names(_number(account) for account in grown):
            said += f" Database sessions of {ended} were terminated for their memory use."
        if said:
            return said
        number = max(changed, key=lambda each: changed[each].now.memory_bytes or 0, default=None)
        size = 0 if number is None else changed[number].now.memory_bytes or 0
        if number is None or size < _NOTABLE_BYTES:
            return ""
        return f" {await self._name(number)} uses {size / 2**30:.1f} GiB."

    async def of_disk(self) -> str:
        changed = await self._disk.changed()
        number = max(changed, key=lambda each: changed[each].writes, default=None)
        if number is None or changed[number].writes < _NOTABLE_WRITES:
            return ""
        return f" {await self._name(number)} writes {changed[number].writes / 2**20:.0f} MiB/s to disk."

    async def of_connections(self) -> str:
        """The visitor and the site with the most connections, if they have many: sentences for the message of a
        check."""
        callers = await trio.to_thread.run_sync(self.vitals.connections_by_address, self.ports)
        said = ""
        caller = max(callers, key=lambda each: callers[each], default=None)
        if caller is not None and callers[caller] >= _NOTABLE_CALLER:
            said = f" {caller} has {callers[caller]} connections to the web server."
        for kind, server in self.databases.items():
            open_: Counter[str] = Counter()
            # A server that does not answer is ignored here; the check itself reports it.
            with suppress(DatabaseError), trio.move_on_after(_ANSWER_SECONDS):
                open_.update(session.site for session in await server.sessions())
            for account, count in open_.most_common(1):
                if count >= _NOTABLE_SESSIONS * CONNECTIONS[kind].site:
                    said += f" {await self._name(_number(account))} has {count} connections to {kind.value}."
        return said

    async def of_jobs(self) -> str:
        row = await self.database.fetchrow(
            """SELECT domain, count(*) AS own, sum(count(*)) OVER () AS together
               FROM jobs LEFT JOIN sites ON sites.id = site_id WHERE jobs.status IN ('queued', 'running')
               GROUP BY domain ORDER BY domain IS NULL, own DESC LIMIT 1"""
        )
        if row is None or row["domain"] is None or row["own"] < _NOTABLE_JOBS:
            return ""
        return f" {row['domain']} has {row['own']} of the {row['together']} queued or running jobs."

    async def _names(self, numbers: Iterable[int]) -> str:
        return ", ".join([await self._name(number) for number in sorted(numbers)[:_NAMED]])

    async def _name(self, number: int) -> str:
        domain = await self.database.fetchval("SELECT domain FROM sites WHERE number = $1", number)
        return f"s{number}" if domain is None else str(domain)


def _number(account: str) -> int:
    return int(account.removeprefix("s"))
