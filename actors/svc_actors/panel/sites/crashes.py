"""Programs that end by themselves again and again: an alert while one does, for operators, and of a site's program in
the words of its owner.

The launcher starts again whatever ends, so that a single end is in its log alone and nobody is told. `MANY` ends within
`WINDOW_SECONDS` are an incident. It is over when the program has run so long without one, or is there no more: it was
stopped, or another release has taken its place.

Invariant: an incident is told once, also when the core is started again in the midst of it: its alert is what the next
core goes on from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final
from uuid import UUID

import trio

from svc_actors.alerts import Severity, Told, close_alerts, raise_alert
from svc_actors.host.apps.model import KIND as APP
from svc_actors.host.launcher import ServiceName, SiteLauncher
from svc_actors.host.php.pool import KIND as PHP
from svc_actors.store import Database, Transaction

ROUND_SECONDS: Final = 15.0
WINDOW_SECONDS: Final = 180.0
"""Several times the longest pause before a program is started again (30 s)."""
MANY: Final = 3
_ALERTS: Final = "crashes:"
_OF_A_SITE: Final = re.compile(r"site-(?P<number>[0-9]+)-(?P<kind>[a-z]+-)?.*")
_KINDS: Final = {PHP: "PHP", APP: "The application"}
"""Of the programs of sites that are looked at: a shell ends as whoever sits at it likes."""


class CrashWatch:
    def __init__(
        self, database: Database, launcher: SiteLauncher, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._database = database
        self._launcher = launcher
        self._clock = clock
        self._restarts: Mapping[ServiceName, int] = {}
        self._ends: dict[ServiceName, list[float]] = {}
        """When they ended, of those that have within the window."""
        self._told: set[ServiceName] | None = None
        """Those with an open alert; None until it is known."""

    async def round(self) -> None:
        """Raises `LauncherError`, and what the database raises."""
        restarts = {name: count for name, count in (await self._launcher.restarts()).items() if _looked_at(name)}
        now = self._clock()
        if self._told is None:
            self._told = await _told(self._database)
            # An earlier core saw them end, and not when.
            self._ends = {name: [now] for name in self._told}
        for name, count in restarts.items():
            # Of one that is new here it is not known when it ended.
            more = min(max(count - self._restarts.get(name, count), 0), MANY)
            self._ends[name] = [*self._ends.get(name, ()), *[now] * more]
        self._restarts = restarts
        self._ends = {
            name: recent
            for name, ends in self._ends.items()
            if name in restarts and (recent := [at for at in ends if now - at < WINDOW_SECONDS])
        }
        troubled = {name for name, ends in self._ends.items() if name in self._told or len(ends) >= MANY}
        if troubled != self._told:
            last = {name: (await self._launcher.status(name)).last_exit for name in troubled - self._told}
            await self._database.transact(lambda tx: _tell(tx, last, troubled))
            self._told = troubled


def _looked_at(name: ServiceName) -> bool:
    found = _OF_A_SITE.fullmatch(name)
    return found is None or found["kind"] in _KINDS


async def _told(database: Database) -> set[ServiceName]:
    rows = await database.fetch("SELECT key FROM alerts WHERE starts_with(key, $1) AND closed_at IS NULL", _ALERTS)
    return {ServiceName(row["key"].removeprefix(_ALERTS)) for row in rows}


async def _tell(tx: Transaction, new: Mapping[ServiceName, str | None], troubled: Collection[ServiceName]) -> None:
    """Alerts of the `new` ones, with how each ended last, are opened, and of all but the `troubled` closed."""
    await close_alerts(tx, _ALERTS, keep=[f"{_ALERTS}{name}" for name in troubled])
    for name, last_exit in new.items():
        happens = f"crashes repeatedly ({last_exit or 'cause unknown'}) and is restarted each time"
        found = _OF_A_SITE.fullmatch(name)
        if found is None:
            message = f"{name} of this server {happens}: see its log and the keeper's."
            await raise_alert(tx, f"{_ALERTS}{name}", message, severity=Severity.CRITICAL)
            continue
        site = await tx.fetchrow(
            "SELECT id, domain, owner_id FROM sites WHERE number = $1 FOR SHARE", int(found["number"])
        )
        if site is None:
            continue
        site_id: UUID = site["id"]
        message = f"{_KINDS[found['kind']]} of {site['domain']} {happens}: see the log of the site."
        await raise_alert(
            tx,
            f"{_ALERTS}{name}",
            message,
            resource_kind="site",
            resource_id=site_id,
            told=Told(site["owner_id"], message),
        )
