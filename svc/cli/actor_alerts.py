"""Alerts of the actor runtime as alerts of the service: open while an actor fails, closed when it works again.

Invariants:
- of one actor the newest word counts, and it is written however long the database is away: an alert neither stays
  open for an actor that works, nor is it missing for one that does not;
- a process begins with no such alert open: its actors are loaded anew, and what was wrong in the process before it
  shows again where it lasts.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_actors.alerts import Severity, close_alert, close_alerts, raise_alert
from svc_actors.runtime import ActorAlert, AlertKind
from svc_actors.runtime.supervision import log_alert
from svc_actors.store import Database, Transaction

_PREFIX: Final = "actor:"
_SHOWN: Final = (AlertKind.REFUSING, AlertKind.OVERDUE, AlertKind.RECOVERED)
"""A single crash is in the log only: the actor is loaded again, and whoever asked was told."""


class ActorAlerts:
    """`notice` is for the actor system, which must not wait; `run` writes what was noticed until it is cancelled."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begun = False
        self._unwritten: dict[str, ActorAlert] = {}
        self._noticed = trio.Event()

    def notice(self, alert: ActorAlert) -> None:
        log_alert(alert)
        if alert.kind in _SHOWN:
            self._unwritten[alert.actor] = alert
            self._noticed.set()

    async def run(self) -> None:
        """Write until cancelled. Raises what the database raises; called again it goes on where it was."""
        if not self._begun:
            await self._close_those_of_before()
            self._begun = True
        while True:
            while self._unwritten:
                await self._write(next(iter(self._unwritten.values())))
            self._noticed = trio.Event()
            await self._noticed.wait()

    async def _close_those_of_before(self) -> None:
        await self._database.transact(lambda tx: close_alerts(tx, _PREFIX))

    async def _write(self, alert: ActorAlert) -> None:
        key = f"{_PREFIX}{alert.actor}"

        async def write(tx: Transaction) -> None:
            if alert.kind is AlertKind.RECOVERED:
                await close_alert(tx, key)
            else:
                await raise_alert(
                    tx, key, f"{alert.actor} is {alert.kind.value} after {alert.during}", severity=Severity.WARNING
                )

        await self._database.transact(write)
        if self._unwritten.get(alert.actor) is alert:  # Else there is news already, which is written next.
            del self._unwritten[alert.actor]
