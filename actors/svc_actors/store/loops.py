"""Background loops that survive every failure of the database and every defect.

This is the one place where a loop catches everything its work raises: a cancelled statement, an outage, a defect that
one row triggers. The round ends, the error is logged, repeated failures open an alert, and the loop goes on; the alert
is closed when the loop works again. `except*` takes the errors out of a group that also holds a cancellation, so an
error does not disturb a service that is stopping. The back-off is jittered so that the loops of a service do not all
resume at the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, Generic, Literal, TypeVar

import structlog
import trio

from svc_actors.runtime import DomainError
from svc_common.errors import ServiceError

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
LONGEST_AWAY: Final = 5.0
"""The longest pause while the database is away or full, however long that lasts: all loops run again within ten seconds
of its return."""
ALERT_AFTER: Final = 6
"""Failures in a row, which take some ten seconds: a restart of PostgreSQL is over by then."""

LoopAlert = Callable[[str, Exception | None], None]
"""Called with the name of a loop that keeps failing and its last error; with None once it works again. Must neither
wait nor raise."""
Work = Callable[[], Awaitable[object]]
Name_contra = TypeVar("Name_contra", bound=str, contravariant=True)

ServiceLoop = Literal[
    "alert mail",
    "alerts of actors",
    "alerts of loops",
    "events",
    "forgetting",
    "list counts",
    "mail delivery",
    "password asks",
    "retention",
    "sealing the audit",
    "webhook history",
    "webhooks",
]
"""The loops that every service has."""

log = structlog.get_logger(__name__)


class Loops(Generic[Name_contra]):
    """The background loops of a service, by name. The selected ones (None: all) start when they are added, run in
    `nursery` and end with it; a service runs all of them, a test those that it is about. `alert` is called for a loop
    that keeps failing."""

    def __init__(self, nursery: trio.Nursery, alert: LoopAlert, only: Collection[Name_contra] | None = None) -> None:
        self.alert = alert
        self._nursery = nursery
        self._only = only
        self._steps: dict[str, Work] = {}

    def keep(self, name: Name_contra, loop: Work, *, step: Work | None = None) -> None:
        """Run `loop`, which does not end by itself, and restart it after each failure. `step` does one round of it."""
        if step is not None:
            self._steps[name] = step
        if self.wants(name):
            self._nursery.start_soon(keep_running, name, loop, self.alert)

    def keep_untold(self, name: Name_contra, loop: Work) -> None:
        """As `keep`, without an alert: for the loop that writes the alerts of loops, which could not write its own."""
        if self.wants(name):
            self._nursery.start_soon(keep_running, name, loop)

    def repeat(self, name: Name_contra, seconds: float, work: Work, *, first_after: float | None = None) -> None:
        """Do `work` every `seconds`; the first time after `first_after` seconds, by default after `seconds`."""
        self._steps[name] = work
        if self.wants(name):
            self._nursery.start_soon(partial(keep_repeating, name, seconds, work, self.alert, first_after=first_after))

    def repeat_from_now(self, name: Name_contra, seconds: float, work: Work) -> None:
        """Do `work` at once, since it resumes what an earlier process left undone, and then every `seconds`."""
        self.repeat(name, seconds, work, first_after=0)

    async def start(self, name: Name_contra, run: Callable[..., Awaitable[object]]) -> None:
        """Run `run`, which handles its own failures, and wait until it reports that it has started."""
        if self.wants(name):
            await self._nursery.start(run)

    def wants(self, name: Name_contra) -> bool:
        return self._only is None or name in self._only

    async def step(self, name: Name_contra) -> None:
        """Do one round of the loop of this name now, whether it runs or not: for tests."""
        await self._steps[name]()


async def keep_running(name: str, loop: Work, alert: LoopAlert | None = None) -> None:
    """Run `loop`, which does not end by itself, until cancelled; restart it after each failure. It counts as working
    again once it has run for the longest pause."""
    health = _Health(name, alert)
    while True:
        pause = 0.0
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(health.works_after, LONGEST_PAUSE)
                await loop()
                nursery.cancel_scope.cancel()
            health.works()
        except* Exception as failed:  # noqa: BLE001 - of any kind: see the top of this page
            pause = health.failed(failed)
        await trio.sleep(pause)


async def keep_repeating(
    name: str,
    seconds: float,
    work: Work,
    alert: LoopAlert | None = None,
    *,
    first_after: float | None = None,
) -> None:
    """Do `work` again and again until cancelled, with a pause of `seconds`, or a shorter one after a failure. The first
    time is after `first_after` seconds, by default after `seconds`."""
    health = _Health(name, alert)
    await trio.sleep(seconds if first_after is None else first_after)
    while True:
        try:
            await work()
            health.works()
            pause = seconds
        except* Exception as failed:  # noqa: BLE001 - of any kind: see the top of this page
            pause = min(health.failed(failed), seconds)
        await trio.sleep(pause)


class _Health:
    """Counts a loop's failures in a row, and calls `alert`."""

    def __init__(self, name: str, alert: LoopAlert | None) -> None:
        self._name = name
        self._alert = alert
        self._failures = 0

    def failed(self, error: Exception) -> float:
        """Log the failure, alert when there were `ALERT_AFTER` of them, and return the seconds to wait."""
        self._failures += 1
        cause, longest = _only(error), LONGEST_PAUSE
        if isinstance(cause, ServiceError):
            longest = LONGEST_AWAY
        if isinstance(cause, DomainError):
            log.warning("loop.failed", loop=self._name, failures=self._failures, error=str(cause))
        else:
            log.exception("loop.failed", loop=self._name, failures=self._failures)
        if self._failures == ALERT_AFTER and self._alert is not None:
            self._alert(self._name, cause)
        pause: float = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 20), longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311

    def works(self) -> None:
        if self._failures >= ALERT_AFTER and self._alert is not None:
            self._alert(self._name, None)
        self._failures = 0

    async def works_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        self.works()


def _only(error: Exception) -> Exception:
    """The error itself if a nursery's group holds only one, otherwise the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
