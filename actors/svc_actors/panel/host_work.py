"""Runs work on this server that an actor's handler orders, in tasks of its own.

A handler has a deadline, and exceeding it counts as a crash, of which the operator gets an alert. One systemctl may
take ten minutes on a busy server, which is no defect. So the handler decides, records, and orders the work here; the
caller that asked the actor waits for the work. An operation waits for `HOST_PATIENCE` at most, and then answers what is
not done yet, while the work continues. A job waits until the work has ended.

Cancelling the work instead would be simpler and would never finish: each repeated start would stop the previous start,
which systemd has not finished yet.

Invariants:
- pieces of work for the same key run one at a time, in the order of the requests;
- work reads the records when it starts: so a piece that waits serves all messages that request the same work meanwhile;
- a failure that no caller waits for is logged, and ends nothing else;
- work that a stop of the core interrupts is repeated, as after a kill: the records say what is not done yet.

Why: docs/decisions/0003-long-work-has-a-row.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import structlog
import trio

from svc_actors.runtime import Crash
from svc_actors.store import background_nursery
from svc_common.errors import ErrorCode, ServiceError, unavailable

HOST_PATIENCE: Final = 30.0
"""Seconds that a caller waits: less than most clients of an HTTP API do."""

LONGEST: Final = 1800.0
"""Seconds after which work is given up: longer than all calls to the launcher for one site together, each within its
own limit."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.host_work")

Work = Callable[[], Awaitable[None]]
AnswerT = TypeVar("AnswerT")
OtherT = TypeVar("OtherT")


@dataclass(eq=False)
class _Piece:
    """A piece of work that some messages have ordered."""

    do: Callable[[], Awaitable[Any]]
    ended: trio.Event = field(default_factory=trio.Event)
    answer: Any = None
    error: ServiceError | None = None
    awaited_by: int = 0


@dataclass(frozen=True)
class Ordered(Generic[AnswerT]):
    """The result of a handler that has ordered work: the caller waits for the work, and then gets the work's answer, or
    the handler's own. `what` says how far things are until then."""

    _piece: _Piece
    what: str
    _answer: Callable[[Any], AnswerT]

    def answering(self, answer: OtherT) -> Ordered[OtherT]:
        return Ordered(self._piece, self.what, lambda _: answer)

    async def soon(self) -> AnswerT:
        """Wait for `HOST_PATIENCE` at most. Raises what the work raises, and `unavailable` if it takes longer."""
        with trio.move_on_after(HOST_PATIENCE):
            return await self.outcome()
        raise unavailable(
            f"{self.what}: this server has not finished it within {HOST_PATIENCE:g} seconds.",
            hint="The work continues in the background and is retried if it fails. Check again in a moment.",
        )

    async def outcome(self) -> AnswerT:
        """Wait until the work has ended, however long that takes. Raises what the work raises."""
        piece = self._piece
        piece.awaited_by += 1
        try:
            await piece.ended.wait()
        finally:
            piece.awaited_by -= 1
        if piece.error is not None:
            raise piece.error
        return self._answer(piece.answer)


class HostWork:
    def __init__(self, nursery: trio.Nursery, on_crash: Callable[[Crash], None]) -> None:
        self._nursery = nursery
        self._on_crash = on_crash
        self._turns: dict[str, trio.Lock] = {}
        self._waiting: dict[tuple[str, str], _Piece] = {}
        """Work that is not started yet, by key and kind."""
        self._under_way: set[_Piece] = set()
        self._draining = False

    @classmethod
    @asynccontextmanager
    async def open(cls, on_crash: Callable[[Crash], None]) -> AsyncIterator[HostWork]:
        """Leaving the block interrupts work that is under way, so leave it after the actors have ended. A defect of the
        work raises an alert like a crash of its actor."""
        async with background_nursery() as nursery:
            yield cls(nursery, on_crash)

    def order(self, key: str, kind: str, do: Callable[[], Awaitable[AnswerT]], *, what: str) -> Ordered[AnswerT]:
        """Run `do` once all earlier work under this key is done. `key` has the form `Type:key`, as the actor's."""
        piece = self._waiting.get((key, kind))
        if piece is None:
            piece = self._waiting[key, kind] = _Piece(do)
            self._nursery.start_soon(self._run, key, kind, piece, name=f"{kind} of {key}")
        return Ordered(piece, what, lambda answer: answer)

    async def drain(self, deadline: float) -> None:
        """Shut down: start no work, and wait at most `deadline` seconds for what is under way."""
        self._draining = True
        with trio.move_on_after(deadline):
            for piece in list(self._under_way):
                await piece.ended.wait()

    async def _run(self, key: str, kind: str, piece: _Piece) -> None:
        turn = self._turns.setdefault(key, trio.Lock())
        # This stays the answer unless the work returns, so it is the answer to a cancellation, too. It is set
        # beforehand instead of when the cancellation is caught: a cancellation that leaves a nursery of the work
        # arrives in an exception group, perhaps with other errors.
        piece.error = unavailable("The service is stopping; the work continues once it runs again.")
        try:
            async with turn:
                del self._waiting[key, kind]
                if self._draining:
                    return
                self._under_way.add(piece)
                with trio.move_on_after(LONGEST) as deadline:
                    piece.answer = await piece.do()
            if deadline.cancelled_caught:
                raise unavailable(f"This server has not finished within {LONGEST:g} seconds; it is tried again.")
            piece.error = None
        except ServiceError as error:
            piece.error = error
            if not piece.awaited_by:
                log.warning("host_work.failed", key=key, kind=kind, error=error.message)
        except Exception as error:
            log.exception("host_work.crashed", key=key, kind=kind)
            self._on_crash(Crash(key, kind, error))
            piece.error = ServiceError(ErrorCode.INTERNAL, "The service failed while doing this; its log says why.")
        finally:
            self._under_way.discard(piece)
            piece.ended.set()
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting and self._turns.get(key) is turn:
                del self._turns[key]


async def soon(asking: Awaitable[Ordered[AnswerT]]) -> AnswerT:
    """Await an actor's answer and then, for at most `HOST_PATIENCE`, the end of the host work. For operations."""
    return await (await asking).soon()


async def finished(asking: Awaitable[Ordered[AnswerT]]) -> AnswerT:
    """Await an actor's answer and then the end of the host work. For jobs, which have time."""
    return await (await asking).outcome()
