"""Alerts about the service's own parts, its actors and its background loops: open while one fails, closed when it works
again.

Invariants:
- the newest state of a part counts, and it is written however long the database is away: no alert stays open for a part
  that works, and none is missing for one that does not;
- a process starts without open alerts: its actors and loops are new, and a problem of the previous process shows again
  if it lasts.
"""

from __future__ import annotations

from functools import partial

import trio

from svc_actors.alerts import close_alerts, set_alert
from svc_actors.runtime import ActorAlert, AlertKind
from svc_actors.runtime.supervision import log_alert
from svc_actors.store import Database


class _PartAlerts:
    """`say` never waits; `run` writes what was said until it is cancelled."""

    def __init__(self, database: Database, prefix: str) -> None:
        self._database = database
        self._prefix = prefix
        self._begun = False
        self._unwritten: dict[str, str | None] = {}
        self._said = trio.Event()

    def say(self, part: str, message: str | None) -> None:
        """Open the alert of this part with a message, or close it."""
        self._unwritten[part] = message
        self._said.set()

    async def run(self) -> None:
        """Write until cancelled. Raises the database's errors; called again it continues."""
        if not self._begun:
            await self._database.transact(lambda tx: close_alerts(tx, self._prefix))
            self._begun = True
        while True:
            while self._unwritten:
                await self._write(*next(iter(self._unwritten.items())))
            self._said = trio.Event()
            await self._said.wait()

    async def _write(self, part: str, message: str | None) -> None:
        await self._database.transact(partial(set_alert, key=f"{self._prefix}{part}", message=message))
        if self._unwritten[part] == message:  # Else there is newer state already, which is written next.
            del self._unwritten[part]


class ActorAlerts(_PartAlerts):
    """A single crash is only logged: the actor is loaded again, and its caller got an error."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "actor:")

    def notice(self, alert: ActorAlert) -> None:
        log_alert(alert)
        match alert.kind:
            case AlertKind.REFUSING | AlertKind.OVERDUE:
                self.say(alert.actor, f"{alert.actor} is {alert.kind.value} after {alert.during}")
            case AlertKind.RECOVERED:
                self.say(alert.actor, None)


class LoopAlerts(_PartAlerts):
    """Background loops that keep failing (`svc_actors.store.loops`)."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "loop:")

    def notice(self, name: str, error: Exception | None) -> None:
        failing = f"The background loop {name} keeps failing, and is tried again: {error}"
        self.say(name, None if error is None else failing)
