"""Wakes the actors of endpoints to make their attempts: at once after a write, and when a retry is due.

Invariants:
- the schedule is in the rows: a restart loses nothing;
- each endpoint has its own task: an endpoint that hangs, crashes or refuses delays no other.

Why: docs/decisions/0015-webhooks.md.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Loops, ServiceLoop
from svc_actors.webhooks import deliveries
from svc_actors.webhooks.endpoint import Delivering, WebhookEndpoint
from svc_actors.webhooks.outbox import CHANNEL

LONGEST_LOOK: Final = 30.0
"""The most seconds between two looks: an announcement may be lost with the process that wrote it."""
_SHORTEST_LOOK: Final = 0.05
_PAUSE_AFTER_FAILURE: Final = 5.0
_FORGET_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


def install_webhooks(actors: ActorSystem, delivering: Delivering) -> None:
    actors.register(WebhookEndpoint, lambda _: WebhookEndpoint(delivering))


def add_webhook_loops(loops: Loops[ServiceLoop], actors: ActorSystem, delivering: Delivering) -> None:
    dispatcher = Dispatcher(actors, delivering)
    loops.keep("webhooks", dispatcher.run, step=dispatcher.round)
    loops.repeat("webhook history", _FORGET_SECONDS, partial(_forget, delivering))


async def _forget(delivering: Delivering) -> None:
    await deliveries.forget_old(delivering.database, delivering.clock())


class Dispatcher:
    def __init__(self, actors: ActorSystem, delivering: Delivering) -> None:
        self._actors = actors
        self._database = delivering.database
        self._clock = delivering.clock
        self._busy: set[UUID] = set()
        self._woken = trio.Event()

    async def run(self) -> None:
        """Run until cancelled. Raises what the database raises; a new call resumes where it was."""
        self._busy.clear()
        with self._database.announcements.listener(CHANNEL, lambda _: self._woken.set()):
            async with trio.open_nursery() as nursery:
                while True:
                    self._woken = trio.Event()
                    pause = await self._look(nursery)
                    with trio.move_on_after(pause):
                        await self._woken.wait()

    async def round(self) -> None:
        """Look once, as `run` does: all due attempts have an outcome when it returns."""
        async with trio.open_nursery() as nursery:
            await self._look(nursery)

    async def _look(self, nursery: trio.Nursery) -> float:
        """Wake the actors of all endpoints that have something due; returns the seconds to the next look."""
        now = self._clock()
        for endpoint_id in await deliveries.endpoints_due(self._database, now):
            if endpoint_id not in self._busy:
                self._busy.add(endpoint_id)
                nursery.start_soon(self._deliver, endpoint_id)
        at = await deliveries.next_attempt(self._database, now)
        if at is None:
            return LONGEST_LOOK
        return min(max((at - self._clock()).total_seconds(), _SHORTEST_LOOK), LONGEST_LOOK)

    async def _deliver(self, endpoint_id: UUID) -> None:
        try:
            await self._actors.ref(WebhookEndpoint, str(endpoint_id)).ask(WebhookEndpoint.deliver)
        except DomainError as error:
            # The actor's supervision handles a crash; the rows are unchanged and will be tried again.
            log.warning("webhook.round_failed", endpoint=str(endpoint_id), error=str(error))
            await trio.sleep(_PAUSE_AFTER_FAILURE)
        finally:
            self._busy.discard(endpoint_id)
            self._woken.set()
