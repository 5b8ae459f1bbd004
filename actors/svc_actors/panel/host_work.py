"""Runs work on this server that an actor's handler orders, in tasks of its own.

A handler has a deadline, and exceeding it counts as a crash, of which the operator gets an alert. One systemctl may
take ten minutes on a busy server, which is no defect. So the handler decides and records, orders the work here, and
waits for `HOST_PATIENCE` at most. Longer work continues without the handler, and the caller gets `HostBusy`.

Cancelling the work instead would be simpler and would never finish: each repeated start would stop the previous start,
which systemd has not finished yet.

Invariants:
- work for one key runs one piece at a time, in the order of the requests;
- work reads the records when it starts: a waiting piece serves all messages that request the same meanwhile;
- a failure that no caller waits for is logged, and ends nothing else;
- work that a stop of the core interrupts is repeated, as after a kill: the records say what is not done yet.

Why: docs/decisions/0003-long-work-has-a-row.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from svc_actors.store import background_nursery
from svc_common.errors import ErrorCode, ServiceError, unavailable

HOST_PATIENCE: Final = 30.0
"""Seconds. Together with the store's own bounds it is less than a handler may take (`HANDLER_DEADLINE`), and by itself
less than most clients of an HTTP API wait."""

LONGEST: Final = 1800.0
"""Seconds after which work is given up: longer than all launcher calls of a site, each within its own bound."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.host_work")

Work = Callable[[], Awaitable[None]]


@dataclass(eq=False)
class _Asked:
    """A piece of work that some messages wait for."""

    do: Work
    ended: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    awaited_by: int = 0

    async def outcome(self) -> None:
        self.awaited_by += 1
        try:
            await self.ended.wait()
        finally:
            self.awaited_by -= 1
        if self.error is not None:
            raise self.error


class HostBusy(ServiceError):  # noqa: N818 - named for what it says
    """The request is recorded, and is still being carried out."""

    def __init__(self, what: str, asked: _Asked) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"{what}: this server has not finished it within {HOST_PATIENCE:g} seconds.",
            hint="The work continues in the background and is retried if it fails. Check again in a moment.",
        )
        self._asked = asked

    async def outcome(self) -> None:
        """Wait for the end, however long that takes. Raises what the work raises."""
        await self._asked.outcome()


class HostWork:
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._turns: dict[str, trio.Lock] = {}
        self._waiting: dict[tuple[str, str], _Asked] = {}
        """Not started yet, by key and kind."""

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[HostWork]:
        """Leaving the block cuts work under way short. Leave it after the actors."""
        async with background_nursery() as nursery:
            yield cls(nursery)

    async def carry_out(self, key: str, kind: str, do: Work, *, what: str) -> None:
        """Run `do` once all earlier requests under this key are done. Raises what it raises, and `HostBusy` if it takes
        longer than `HOST_PATIENCE`; `what` then says how far it is."""
        asked = self._waiting.get((key, kind))
        if asked is None:
            asked = self._waiting[key, kind] = _Asked(do)
            self._nursery.start_soon(self._run, key, kind, asked, name=f"{kind} of {key}")
        with trio.move_on_after(HOST_PATIENCE):
            await asked.outcome()
            return
        raise HostBusy(what, asked)

    async def _run(self, key: str, kind: str, asked: _Asked) -> None:
        turn = self._turns.setdefault(key, trio.Lock())
        try:
            async with turn:
                del self._waiting[key, kind]
                with trio.move_on_after(LONGEST) as deadline:
                    await asked.do()
            if deadline.cancelled_caught:
                raise unavailable(f"This server has not finished within {LONGEST:g} seconds; it is tried again.")
        except ServiceError as error:
            asked.error = error
            if not asked.awaited_by:
                log.warning("host_work.failed", key=key, kind=kind, error=error.message)
        except Exception as error:
            asked.error = error
            if not asked.awaited_by:
                log.exception("host_work.crashed", key=key, kind=kind)
        except trio.Cancelled:
            asked.error = unavailable("The service is stopping; the work continues once it runs again.")
            raise
        finally:
            asked.ended.set()
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting and self._turns.get(key) is turn:
                del self._turns[key]


async def finished(asking: Awaitable[object]) -> None:
    """For jobs, which have time: awaits an actor's answer and, if the server is still busy then, the end of the
    work."""
    try:
        await asking
    except HostBusy as busy:
        await busy.outcome()
