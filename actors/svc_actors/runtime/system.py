"""All actors of a process: where they are found, the nursery they live in, and the clock that ends their idleness.

Invariants:
- For a type and a key there is at most one cell, from its first message until it leaves with an empty mailbox.
- The nursery outlives every cell and all work; nothing but cancellation leaves a cell's task.
- Actors at rest are not here: no task, no object, no entry.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf

import trio

from svc_actors.runtime.actor import A, Actor, Arguments, Ref
from svc_actors.runtime.cell import Cell
from svc_actors.runtime.errors import Draining
from svc_actors.runtime.message import Work
from svc_actors.runtime.supervision import ActorAlert, RestartPolicy, log_alert

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KindStatistics:
    """Of one actor type: live actors, those handling a message, messages waiting, pieces of work, actors refusing
    messages after too many crashes; and counted since the start, activations and crashes."""

    live: int
    handling: int
    waiting: int
    work: int
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
    """Opened once, by whoever composes the process; see `open`."""

    _nursery: trio.Nursery

    def __init__(
        self,
        defaults: Settings,
        on_alert: Callable[[ActorAlert], None],
    ) -> None:
        self._defaults = defaults
        self._on_alert = on_alert
        self._kinds: dict[type[Actor], Kind] = {}
        self._context = copy_context()
        self._live = 0
        self._emptied = trio.Event()
        self._checks: list[tuple[float, int, Cell]] = []
        self._checks_made = 0
        self._clock = trio.CancelScope()
        self.draining = False
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        mailbox_limit: int = 256,
        idle_after: float = 300.0,
        restart: RestartPolicy | None = None,
        handler_deadline: float | None = None,
        on_alert: Callable[[ActorAlert], None] | None = None,
    ) -> AsyncIterator[ActorSystem]:
        """A system for the length of a `with` block. Leaving the block cancels what `drain` has not finished.

        Times are in seconds. What is given here holds for every type that does not override it in `register`. Alerts
        are logged, unless `on_alert` takes them; it is called in the midst of things and must neither block nor raise.
        """
        settings = Settings(mailbox_limit, idle_after, restart or RestartPolicy(), handler_deadline)
        system = cls(settings, on_alert or log_alert)
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
        """Hold the nursery of all actors in a task of its own: so closing it does not cancel the block, and cancelling
        the block leaves the actors to it until it ends, and may yet drain them."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._run_clock, name="actor clock")
                opened.set()

    def register(
        self,
        actor_type: type[A],
        factory: Callable[[str], A],
        *,
        mailbox_limit: int | None = None,
        idle_after: float | None = None,
        restart: RestartPolicy | None = None,
        handler_deadline: float | None = None,
    ) -> None:
        """Say how an actor of this type is made from its key, and where it differs from the system's settings."""
        if any(kind.name == actor_type.__name__ for kind in self._kinds.values()):
            raise ValueError(f"an actor type {actor_type.__name__} is registered already; alerts go by that name")
        of = self._defaults
        settings = Settings(
            of.mailbox_limit if mailbox_limit is None else mailbox_limit,
            of.idle_after if idle_after is None else idle_after,
            of.restart if restart is None else restart,
            of.handler_deadline if handler_deadline is None else handler_deadline,
        )
        self._kinds[actor_type] = Kind(self, actor_type.__name__, factory, settings)

    def ref(self, actor_type: type[A], key: str) -> Ref[A]:
        """The address of an actor of a registered type. Activates nothing."""
        kind = self._kinds.get(actor_type)
        if kind is None:
            raise LookupError(f"{actor_type.__name__} is not registered with this actor system")
        return Ref(kind, key)

    async def drain(self, deadline: float) -> None:
        """Shut down: refuse messages from outside, finish mailboxes and work, passivate every actor.

        What is not finished after `deadline` seconds is cancelled, and its askers are told.
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

    def start(self, fn: Callable[[*Arguments], Awaitable[object]], *args: *Arguments, name: str) -> None:
        """Start a task that carries nothing over from the context of whoever happened to send the message."""
        self._context.run(lambda: self._nursery.start_soon(fn, *args, name=name))

    def add(self, cell: Cell) -> None:
        self._live += 1
        self.start(cell.run, name=str(cell))

    def forget(self, cell: Cell) -> None:
        del cell.kind.cells[cell.key]
        self._live -= 1
        if not self._live:
            self._emptied.set()

    def admits(self, origin: Cell | Work | None) -> bool:
        return not self._closed and not (self.draining and origin is None)

    def alert(self, alert: ActorAlert) -> None:
        try:
            self._on_alert(alert)
        except Exception:
            logger.exception("the alert could not be delivered: %s", alert)

    def call_at(self, when: float, cell: Cell) -> None:
        """Have `cell.check` called at a time, unless it has asked for another one by then."""
        self._checks_made += 1
        heapq.heappush(self._checks, (when, self._checks_made, cell))
        self._clock.deadline = min(self._clock.deadline, when)

    async def _run_clock(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._checks[0][0] if self._checks else inf) as self._clock:
                await trio.sleep_forever()
            now = trio.current_time()
            while self._checks and self._checks[0][0] <= now:
                when, _, cell = heapq.heappop(self._checks)
                if cell.check_at == when:
                    cell.check(now)

    def _close(self) -> None:
        self.draining = self._closed = True
        self._nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the system has for all types, and a type may have for itself."""

    mailbox_limit: int
    idle_after: float
    restart: RestartPolicy
    handler_deadline: float | None

    def __post_init__(self) -> None:
        if self.mailbox_limit < 1 or self.idle_after < 0 or (self.handler_deadline or 1) <= 0:
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

    def cell(self, key: str, origin: Cell | Work | None) -> Cell:
        """The live cell of a key, made now if there is none. Raises `Draining` where no new messages are let in."""
        if not self.system.admits(origin):
            raise Draining(f"{self.name}:{key}")
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(self, key)
            self.system.add(cell)
        return cell

    def make(self, cell: Cell) -> Actor:
        actor = self.factory(cell.key)
        actor.key, actor.system, actor._cell = cell.key, self.system, cell
        return actor

    def statistics(self) -> KindStatistics:
        cells = self.cells.values()
        return KindStatistics(
            live=len(cells),
            handling=sum(cell.current is not None for cell in cells),
            waiting=sum(len(cell.mailbox) for cell in cells),
            work=sum(len(cell.work or ()) for cell in cells),
            refusing=sum(cell.refusing_until is not None for cell in cells),
            activations=self.activations,
            crashes=self.crashes,
        )
