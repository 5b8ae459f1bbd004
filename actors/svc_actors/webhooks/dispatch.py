"""Starts the rounds in which endpoints get their attempts: at once after a write, and when a retry is due.

Invariants:
- the schedule is in the rows: a restart loses nothing;
- each endpoint has its own task: an endpoint that hangs, crashes or refuses delays no other;
- an endpoint has one round at a time. It needs no actor: attempts take longer than a message may, and nothing else
  decides about them.

Why: docs/decisions/0015-webhooks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.runtime import Crash, DomainError
from svc_actors.store import Loops, ServiceLoop
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.endpoint import DeliveryServices, Round
from svc_actors.webhooks.outbox import CHANNEL

LONGEST_LOOK: Final = 30.0
"""The most seconds between two looks: an announcement may be lost with the process that wrote it."""
_SHORTEST_LOOK: Final = 0.05
_PAUSE_AFTER_FAILURE: Final = 5.0
_FORGET_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


def add_webhook_loops(loops: Loops[ServiceLoop], dispatcher: Dispatcher, delivering: DeliveryServices) -> None:
    loops.keep("webhooks", dispatcher.run, step=dispatcher.round)
    loops.repeat("webhook history", _FORGET_SECONDS, partial(_forget, delivering))


async def _forget(delivering: DeliveryServices) -> None:
    await deliveries.forget_old(delivering.database, delivering.clock())


class Dispatcher:
    """Rounds run in `nursery`. `on_crash` gets their defects, as of an actor."""

    def __init__(self, delivering: DeliveryServices, nursery: trio.Nursery, on_crash: Callable[[Crash], None]) -> None:
        self._delivering = delivering
        self._database = delivering.database
        self._clock = delivering.clock
        self._nursery = nursery
        self._on_crash = on_crash
        self._rounds: dict[UUID, trio.Event] = {}
        """The rounds under way, by endpoint. Each event is set when its round ends."""
        self._woken = trio.Event()
        self._draining = False

    async def run(self) -> None:
        """Run until cancelled. Raises what the database raises; a new call resumes where it was."""
        with self._database.announcements.listener(CHANNEL, lambda _: self._woken.set()):
            while True:
                self._woken = trio.Event()
                pause = await self._look()
                with trio.move_on_after(pause):
                    await self._woken.wait()

    async def round(self) -> None:
        """Look once, as `run` does: all due attempts have an outcome when it returns."""
        await self._look()
        await self._all_ended()

    async def drain(self, deadline: float) -> None:
        """Shut down: start no attempt, and wait at most `deadline` seconds for those under way to be recorded."""
        self._draining = True
        with trio.move_on_after(deadline):
            await self._all_ended()

    async def _all_ended(self) -> None:
        for ended in list(self._rounds.values()):
            await ended.wait()

    async def _look(self) -> float:
        """Start a round of each endpoint that has something due; returns the seconds to the next look."""
        now = self._clock()
        for endpoint_id in await deliveries.endpoints_due(self._database, now):
            if endpoint_id not in self._rounds and not self._draining:
                self._rounds[endpoint_id] = trio.Event()
                self._nursery.start_soon(self._deliver, endpoint_id)
        at = await deliveries.next_attempt(self._database, now)
        if at is None:
            return LONGEST_LOOK
        return min(max((at - self._clock()).total_seconds(), _SHORTEST_LOOK), LONGEST_LOOK)

    async def _deliver(self, endpoint_id: UUID) -> None:
        try:
            await Round(self._delivering, endpoint_id, lambda: self._draining).deliver()
        except Exception as error:
            # Whatever it is, it ends no other endpoint's round. The rows are unchanged and will be tried again.
            defect = not isinstance(error, DomainError)
            log.warning("webhook.round_failed", endpoint=str(endpoint_id), error=str(error), exc_info=defect)
            if defect:
                self._on_crash(Crash(f"WebhookEndpoint:{endpoint_id}", "deliver", error))
            await trio.sleep(_PAUSE_AFTER_FAILURE)
        finally:
            self._rounds.pop(endpoint_id).set()
            self._woken.set()
