"""Background loops over the database, which nothing that the database does may end.

One cancelled statement, an outage, a defect that one row brings out: logged, alerted when it lasts, and tried again.
The back-off is jittered so that the loops of a service do not all come back in the same moment.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from svc_actors.errors import ServiceError

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
LONGEST_AWAY: Final = 5.0
"""The longest pause while the database is away or full, however long that lasts: everything is back within ten seconds
of its return."""
ALERT_AFTER: Final = 6
"""Failures in a row, which take some ten seconds: what a restart of PostgreSQL causes is over by then."""

LoopAlert = Callable[[str, Exception], None]
"""Told of a loop that keeps failing: its name and the last error. Must neither wait nor raise."""

log = structlog.get_logger(__name__)


async def keep_running(name: str, loop: Callable[[], Awaitable[object]], alert: LoopAlert | None = None) -> None:
    """Run `loop` until cancelled, again after each failure. What ran longer than the longest pause had recovered."""
    failures = 0
    while True:
        began, longest = trio.current_time(), LONGEST_PAUSE
        try:
            await loop()
            failures = 0
        except Exception as error:
            failures = 1 if trio.current_time() - began > LONGEST_PAUSE else failures + 1
            cause = _only(error)
            if isinstance(cause, ServiceError):
                longest = LONGEST_AWAY
                log.warning("loop.failed", loop=name, failures=failures, error=cause.message)
            else:
                log.exception("loop.failed", loop=name, failures=failures)
            if failures == ALERT_AFTER and alert is not None:
                alert(name, cause)
        pause = min(FIRST_PAUSE * 2 ** min(failures - 1, 20), longest) if failures else 0.0
        await trio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311


def _only(error: Exception) -> Exception:
    """The one failure in a nursery's group of them, else the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
