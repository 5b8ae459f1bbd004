"""Alerts about programs that end by themselves again and again: for operators, and for a site's program also for its
owner, in the owner's words.

The launcher restarts every program that ends, so a single end appears only in the program's log, without an alert.
`MANY` ends within `WINDOW_SECONDS` are an incident. The incident is over when the program has run for that long without
ending, or when it is gone because it was stopped or replaced by another release.

Invariant: an incident is reported once, even if the core restarts meanwhile: the next core reads from the open alert
that it was reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final
from uuid import UUID

import trio

from svc_actors.alerts import CustomerNotice, Severity, close_alerts, raise_alert
from svc_actors.store import Database, Transaction
from svc_webhost.apps.model import KIND as APP
from svc_webhost.launcher import ServiceName, SiteLauncher
from svc_webhost.php.pool import KIND as PHP

ROUND_SECONDS: Final = 15.0
WINDOW_SECONDS: Final = 180.0
"""Several times the longest pause before a restart, which is 30 s."""
MANY: Final = 3
_ALERTS: Final = "crashes:"
_OF_A_SITE: Final = re.compile(r"site-(?P<number>[0-9]+)-(?P<kind>[a-z]+-)?.*")
_KINDS: Final = {PHP: "PHP", APP: "The application"}
"""The kinds of site programs that are watched. Shells are not: a user may end one at any time."""


class CrashWatch:
    def __init__(
        self, database: Database, launcher: SiteLauncher, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._database = database
        self._launcher = launcher
        self._clock = clock
        self._restarts: Mapping[ServiceName, int] = {}
        self._ends: dict[ServiceName, list[float]] = {}
        """The times within the window at which each program has ended."""
        self._told: set[ServiceName] | None = None
        """Programs with an open alert; None until they are read from the database."""

    async def round(self) -> None:
        """Raises `LauncherError`, and what the database raises."""
        restarts = {name: count for name, count in (await self._launcher.restarts()).items() if _looked_at(name)}
        now = self._clock()
        if self._told is None:
            self._told = await _told(self._database)
            # The ends of these programs were counted by an earlier core, but their times are lost: one end counts as of
            # now.
            self._ends = {name: [now] for name in self._told}
        for name, count in restarts.items():
            # For a program seen for the first time, the times of its earlier ends are unknown, so they do not count.
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
    """Open alerts for the `new` programs, with how each ended last, and close all but those of `troubled`."""
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
            notice=CustomerNotice(site["owner_id"], message),
        )
