"""All actors of a process: where they are looked up, the nursery they live in, and the clock of their deadlines.

Invariants:
- For a type and a key there is at most one cell, from its first message until it leaves with an empty mailbox.
- The nursery outlives every cell; nothing but cancellation leaves a cell's task.
- Actors at rest are not here: no task, no object, no entry.

Rejected:
- keeping an idle actor for 300 s. At 100,000 machines 51,702 parked tasks made each full garbage collection half a
  second long;
- a cancel scope for the deadline of each message. One clock task watches all handlers and all idle cells: since every
  handler has the same deadline, the first to start is the first to be overdue.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

import trio

from svc_actors.runtime.actor import A, Actor, Ref
from svc_actors.runtime.cell import Cell
from svc_actors.runtime.errors import Draining
from svc_actors.runtime.supervision import ActorAlert, RestartPolicy, log_alert

IDLE_AFTER: Final = 5.0
"""Seconds. Long enough that the messages of one order find the actor live, and short enough that of 100,000 actors only
those in use have a task: a live one is about ten objects, which every full garbage collection visits."""

HANDLER_DEADLINE: Final = 75.0
"""Longer than the store's own bounds together (8 s for a connection, 30 s for a statement, 5 s for the rollback), and
the 30 s that a handler of the panel waits for what its server does (`svc_actors.panel.host_work`): a locked row or a
slow server answers the asker with `unavailable`, and only what hangs beyond that is ended as a crash."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KindStatistics:
    """Of one actor type: live actors, those handling a message, messages waiting, actors refusing messages after too
    many crashes; and counted since the start, activations and crashes."""

    live: int
    handling: int
    waiting: int
    refusing: int
    activations: int
    crashes: int


@dataclass(frozen=True, slots=True)
class SystemStatistics:
    """The figures by type name, and whether the system drains."""

    kinds: Mapping[str, KindStatistics]
    draining: bool

    @property
    def live(self) -> int:
        return sum(kind.live for kind in self.kinds.values())


class ActorSystem:
    """Opened once a process, where the service is composed; see `open`."""

    _nursery: trio.Nursery

    def __init__(
        self,
        defaults: Settings,
        handler_deadline: float,
        on_alert: Callable[[ActorAlert], None],
    ) -> None:
        if handler_deadline <= 0:
            raise ValueError(f"a handler has more than {handler_deadline} seconds")
        self._defaults = defaults
        self.handler_deadline = handler_deadline
        self._on_alert = on_alert
        self._kinds: dict[type[Actor], Kind] = {}
        self._context = copy_context()
        # The clock itself: `trio.current_time` looks it up each time, which shows in the cost of every message.
        self.now = trio.lowlevel.current_clock().current_time
        self._live = 0
        self._emptied = trio.Event()
        self._handling: dict[Cell, None] = {}
        self._checks: list[tuple[float, int, Cell]] = []
        self._checks_made = 0
        self._clock = trio.CancelScope()
        self._clock_at = inf
        self.draining = False
        self.carried: Sequence[tuple[ContextVar[Any], Any]] = ()
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        mailbox_limit: int = 256,
        idle_after: float = IDLE_AFTER,
        restart: RestartPolicy | None = None,
        handler_deadline: float = HANDLER_DEADLINE,
        on_alert: Callable[[ActorAlert], None] | None = None,
        carried: Sequence[ContextVar[Any]] = (),
    ) -> AsyncIterator[ActorSystem]:
        """A system for the length of a `with` block. Leaving the block cancels what `drain` has not finished.

        Times are in seconds. Alerts are logged, unless `on_alert` takes them; it is called from within the runtime, and
        must neither block nor raise. A handler runs with the asker's values of the `carried` variables, and for a
        message without an asker with the values at this call.
        """
        settings = Settings(mailbox_limit, idle_after, restart or RestartPolicy())
        system = cls(settings, handler_deadline, on_alert or log_alert)
        # With their values of now, for messages without an asker.
        system.carried = [(variable, variable.get()) for variable in carried]
        # `around` holds the host, which holds the actors: see `_host` for why there are two nurseries.
        async with trio.open_nursery() as around:
            opened = trio.Event()
            around.start_soon(system._host, opened, name="actor system")
            with trio.CancelScope(shield=True):  # One turn of the scheduler; closing needs the host to be there.
                await opened.wait()
            try:
                yield system
            finally:
                system._close()

    async def _host(self, opened: trio.Event) -> None:
        """Hold the nursery of all actors in a task of its own: closing it does not cancel the block, and cancelling the
        block does not cancel the actors, so that the block's `finally` can still drain them."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._run_clock, name="actor clock")
                opened.set()

    def register(self, actor_type: type[A], factory: Callable[[str], A], *, idle_after: float | None = None) -> None:
        """Register how an actor of this type is made from its key. `idle_after` is for a type whose instances have
        state that is worth keeping for longer (a node's counts what its node adds to the audit)."""
        if any(kind.name == actor_type.__name__ for kind in self._kinds.values()):
            raise ValueError(f"an actor type {actor_type.__name__} is registered already; alerts go by that name")
        settings = self._defaults if idle_after is None else replace(self._defaults, idle_after=idle_after)
        self._kinds[actor_type] = Kind(self, actor_type.__name__, factory, settings)

    def ref(self, actor_type: type[A], key: str) -> Ref[A]:
        """The address of an actor of a registered type. Activates nothing."""
        kind = self._kinds.get(actor_type)
        if kind is None:
            raise LookupError(f"{actor_type.__name__} is not registered with this actor system")
        return Ref(kind, key)

    async def drain(self, deadline: float) -> None:
        """Shut down: refuse messages from outside of all handlers, finish the mailboxes.

        What is not finished after `deadline` seconds is cancelled: askers get an error, and each message without an
        asker raises an alert. So what asks actors until its own end (the task runner) must be drained before.
        """
        self.draining = True
        for kind in self._kinds.values():
            for cell in list(kind.cells.values()):
                cell.begin_drain()
        with trio.move_on_after(deadline):
            while self._live:
                self._emptied = trio.Event()
                await self._emptied.wait()
        if self._live:
            logger.warning("%d actors were not finished within %g seconds and are cancelled", self._live, deadline)
        self._close()

    def statistics(self) -> SystemStatistics:
        return SystemStatistics({kind.name: kind.statistics() for kind in self._kinds.values()}, self.draining)

    def add(self, cell: Cell) -> None:
        """Start a cell's task, with nothing of the context of the task that happened to send the first message."""
        self._live += 1
        self._context.run(lambda: self._nursery.start_soon(cell.run, name=str(cell)))

    def forget(self, cell: Cell) -> None:
        del cell.kind.cells[cell.key]
        self._live -= 1
        if not self._live:
            self._emptied.set()

    def admits(self, asking: Cell | None) -> bool:
        return not self._closed and not (self.draining and asking is None)

    def alert(self, alert: ActorAlert) -> None:
        try:
            self._on_alert(alert)
        except Exception:
            # A defect of the receiver must not end the actor that the alert is about.
            logger.exception("the alert could not be delivered: %s", alert)

    def begins(self, cell: Cell) -> None:
        """A handler starts: `cell.end_overdue` is called at its deadline, unless it `ends` before."""
        cell.due = self.now() + self.handler_deadline
        self._handling[cell] = None
        self._wake_clock_at(cell.due)

    def ends(self, cell: Cell) -> None:
        self._handling.pop(cell, None)

    def call_at(self, when: float, cell: Cell) -> None:
        """Have `cell.check_idle` called at a time, unless it has asked for another one by then."""
        # The counter decides between equal times: cells themselves have no order.
        self._checks_made += 1
        heapq.heappush(self._checks, (when, self._checks_made, cell))
        self._wake_clock_at(when)

    def _wake_clock_at(self, when: float) -> None:
        # Only ever earlier: a later time is found by the clock itself when it has woken for this one.
        if when < self._clock_at:
            self._clock_at = self._clock.deadline = when

    async def _run_clock(self) -> None:
        while True:
            idle = self._checks[0][0] if self._checks else inf
            overdue = next(iter(self._handling)).due if self._handling else inf
            self._clock_at = min(idle, overdue)
            with trio.CancelScope(deadline=self._clock_at) as self._clock:
                await trio.sleep_forever()
            self._check(trio.current_time())

    def _check(self, now: float) -> None:
        # One deadline for all, so the first that started is the first that is overdue.
        while self._handling and (cell := next(iter(self._handling))).due <= now:
            del self._handling[cell]
            cell.end_overdue()
        while self._checks and self._checks[0][0] <= now:
            when, _, cell = heapq.heappop(self._checks)
            # Entries are not removed from the heap: one that the cell has replaced by another time no longer fits.
            if cell.check_at == when:
                cell.check_idle(now)

    def _close(self) -> None:
        self.draining = self._closed = True
        self._nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one actor type; see `ActorSystem.open`."""

    mailbox_limit: int
    idle_after: float
    restart: RestartPolicy

    def __post_init__(self) -> None:
        if self.mailbox_limit < 1 or self.idle_after < 0:
            raise ValueError(f"a mailbox holds at least one message, and times are positive: {self}")


@dataclass(slots=True, eq=False)
class Kind:
    """A registered actor type: its settings, and its live cells by key."""

    system: ActorSystem
    name: str
    factory: Callable[[str], Actor]
    settings: Settings
    cells: dict[str, Cell] = field(default_factory=dict)
    activations: int = 0
    crashes: int = 0

    def cell(self, key: str, asking: Cell | None) -> Cell:
        """The live cell of a key, made now if there is none. Raises `Draining` if no new messages are admitted."""
        if not self.system.admits(asking):
            raise Draining(f"{self.name}:{key}")
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(self, key)
            self.system.add(cell)
        return cell

    def make(self, cell: Cell) -> Actor:
        actor = self.factory(cell.key)
        actor.key, actor.system = cell.key, self.system
        return actor

    def statistics(self) -> KindStatistics:
        cells = self.cells.values()
        return KindStatistics(
            live=len(cells),
            handling=sum(cell.current is not None for cell in cells),
            waiting=sum(len(cell.mailbox) for cell in cells),
            refusing=sum(cell.refusing_until is not None for cell in cells),
            activations=self.activations,
            crashes=self.crashes,
        )
