"""Alerts about the service's own parts, its actors and its background loops: open while one fails, closed when it works
again.

Invariants:
- only the newest state of a part counts, and it is written even if the database is unavailable for long: no alert stays
  open for a part that works, and none is missing for a part that fails;
- the time after which an alert closes starts when the alert is written: so it stays open for that long even if it was
  written late;
- a process starts without open alerts: its actors and loops are new, and a problem of the previous process shows again
  if it lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import trio

from svc_actors.alerts import close_alerts, set_alert
from svc_actors.runtime import Crash
from svc_actors.store import Database

QUIET_SECONDS: Final = 600.0
"""The alert of an actor closes once the actor has not crashed for this long; a message that succeeds does not show that
the defect is gone. The time is longer than alerts are collected for a mail (`svc.identity.alert_mail`), since a mail
leaves out alerts that have closed."""

MOST_OF_A_TYPE: Final = 20
"""The most open alerts for actors of one type. One defect may crash the actors of ten thousand machines: then one
further alert, about the type, stands for all others."""


@dataclass(frozen=True)
class _State:
    """The state of a part of the service. `message` is None if the part works."""

    message: str | None
    seconds: float


class _PartAlerts:
    """`say` records the state of a part and never waits; `run` writes these states to the database."""

    def __init__(self, database: Database, prefix: str) -> None:
        self._database = database
        self._prefix = prefix
        self._begun = False
        self._unwritten: dict[str, _State] = {}
        self._ends: dict[str, float] = {}
        """When open alerts close, on Trio's clock."""
        self._said = trio.Event()

    def say(self, part: str, message: str | None, *, seconds: float = inf) -> None:
        """Open the alert of this part with a message, or close it (None). An opened alert closes this many seconds
        after it was written, unless `say` is called again before."""
        self._unwritten[part] = _State(message, seconds)
        self._ends.pop(part, None)
        self._said.set()

    async def run(self) -> None:
        """Write states until cancelled. Raises the database's errors; a new call continues where this one ended."""
        if not self._begun:
            await self._database.transact(lambda tx: close_alerts(tx, self._prefix))
            self._begun = True
        while True:
            while self._unwritten:
                await self._write(*next(iter(self._unwritten.items())))
            self._said = trio.Event()
            with trio.move_on_at(min(self._ends.values(), default=inf)):
                await self._said.wait()
            for part in [part for part, end in self._ends.items() if end <= trio.current_time()]:
                self.say(part, None)

    def _open(self) -> set[str]:
        """The parts whose alerts are open, or are to be opened."""
        return {part for part, state in self._unwritten.items() if state.message is not None} | self._ends.keys()

    async def _write(self, part: str, state: _State) -> None:
        await self._database.transact(partial(set_alert, key=f"{self._prefix}{part}", message=state.message))
        if self._unwritten[part] == state:  # Otherwise there is a newer state, which is written next.
            del self._unwritten[part]
            if state.message is not None:
                self._ends[part] = trio.current_time() + state.seconds


class ActorAlerts(_PartAlerts):
    def __init__(self, database: Database) -> None:
        super().__init__(database, "actor:")
        self._others: dict[str, set[str]] = {}
        """For each actor type with too many alerts: the crashed actors that share one alert."""

    def notice(self, crash: Crash) -> None:
        kind = crash.actor.partition(":")[0]
        open_parts = self._open()
        own = {part for part in open_parts if part.startswith(f"{kind}:")}
        if crash.actor in own or len(own) < MOST_OF_A_TYPE:
            part, message = crash.actor, f"{crash.actor} crashed in {crash.during}; the log has the cause."
        else:
            if kind not in open_parts:
                self._others[kind] = set()
            self._others[kind].add(crash.actor)
            crashed = _rounded_down(len(own | self._others[kind]))
            part, message = kind, f"More than {crashed} {kind} actors crashed; the log has the causes."
        self.say(part, message, seconds=QUIET_SECONDS)


def _rounded_down(count: int) -> int:
    """The power of ten below, or `MOST_OF_A_TYPE`: each change of an alert's message is an event."""
    return max(MOST_OF_A_TYPE, int(10 ** (len(str(count - 1)) - 1)))


class LoopAlerts(_PartAlerts):
    """Alerts about background loops that keep failing (`svc_actors.store.loops`)."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "loop:")

    def notice(self, name: str, error: Exception | None) -> None:
        failing = f"The background loop {name} keeps failing, and is tried again: {error}"
        self.say(name, None if error is None else failing)
