"""All actors of a process: where they are looked up, and the nursery they live in.

Invariants:
- For a type and a key there is at most one cell, from its first message until it leaves with an empty mailbox.
- Actors at rest are not here: no task, no object, no entry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from svc_actors.runtime.actor import A, Actor, Ref
from svc_actors.runtime.cell import Cell
from svc_actors.runtime.errors import Draining

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash, for the operator. `actor` reads `Type:key`, `during` names the handler."""

    actor: str
    during: str
    error: Exception


@dataclass(frozen=True, slots=True)
class KindStatistics:
    """Figures of one actor type: live actors, waiting messages, and crashes since the start."""

    live: int
    waiting: int
    crashes: int


class ActorSystem:
    """The actors of a process. It is opened once, where the service is composed (`open`)."""

    def __init__(
        self, nursery: trio.Nursery, on_crash: Callable[[Crash], None], carried: Sequence[ContextVar[Any]]
    ) -> None:
        self._nursery = nursery
        self._context = copy_context()
        self._kinds: dict[type[Actor], Kind] = {}
        self._left = trio.Event()
        self.on_crash = on_crash
        self.carried = carried
        self.draining = False
        self.closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, *, on_crash: Callable[[Crash], None] = lambda _: None, carried: Sequence[ContextVar[Any]] = ()
    ) -> AsyncIterator[ActorSystem]:
        """A system for the length of a `with` block. Leaving the block cancels what `drain` has not finished.

        Crashes are logged; `on_crash` is called for each from within the runtime, and must neither block nor raise. A
        handler runs with the asker's values of the `carried` variables.
        """
        async with trio.open_nursery() as nursery:
            system = cls(nursery, on_crash, carried)
            try:
                yield system
            finally:
                system._close()

    def register(self, actor_type: type[A], factory: Callable[[str], A]) -> None:
        """Register how an actor of this type is made from its key."""
        if any(kind.name == actor_type.__name__ for kind in self._kinds.values()):
            raise ValueError(f"an actor type {actor_type.__name__} is registered already; alerts go by that name")
        self._kinds[actor_type] = Kind(self, actor_type.__name__, factory)

    def ref(self, actor_type: type[A], key: str) -> Ref[A]:
        """The address of an actor of a registered type. Creates nothing."""
        return Ref(self._kinds[actor_type], key)

    async def drain(self, deadline: float) -> None:
        """Shut down: refuse messages, finish the mailboxes. After `deadline` seconds the rest is cancelled, and its
        askers get an error. So what asks actors until its own end (the task runner) must be drained before."""
        self.draining = True
        for cell in self._cells():
            cell.wake()
        with trio.move_on_after(deadline):
            while self._cells():
                self._left = trio.Event()
                await self._left.wait()
        if cut := len(self._cells()):
            logger.warning("%d actors were not finished within %g seconds and are cancelled", cut, deadline)
        self._close()

    def statistics(self) -> dict[str, KindStatistics]:
        """The figures of each actor type, by its name."""
        return {kind.name: kind.statistics() for kind in self._kinds.values()}

    def start(self, cell: Cell) -> None:
        # The cell's task runs in the system's own context: context variables of the task that happens to send the first
        # message do not apply.
        self._context.run(partial(self._nursery.start_soon, cell.run, name=str(cell)))

    def left(self) -> None:
        self._left.set()

    def _cells(self) -> list[Cell]:
        return [cell for kind in self._kinds.values() for cell in kind.cells.values()]

    def _close(self) -> None:
        self.draining = self.closed = True
        for cell in self._cells():
            cell.cut()


@dataclass(slots=True, eq=False)
class Kind:
    """A registered actor type, and its live cells by key."""

    system: ActorSystem
    name: str
    factory: Callable[[str], Actor]
    cells: dict[str, Cell] = field(default_factory=dict)
    crashes: int = 0

    def cell(self, key: str) -> Cell:
        """The live cell of a key, made now if there is none. Raises `Draining` if no new messages are admitted."""
        if self.system.draining:
            raise Draining(f"{self.name}:{key}")
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell(self, key)
            self.system.start(cell)
        return cell

    def make(self, key: str) -> Actor:
        actor = self.factory(key)
        actor.key, actor.system = key, self.system
        return actor

    def crashed(self, cell: Cell, during: str, error: Exception) -> None:
        self.crashes += 1
        logger.error("%s crashed in %s: %s: %s", cell, during, type(error).__name__, error, exc_info=error)
        self.system.on_crash(Crash(str(cell), during, error))

    def forget(self, cell: Cell) -> None:
        del self.cells[cell.key]
        self.system.left()

    def statistics(self) -> KindStatistics:
        return KindStatistics(len(self.cells), sum(len(cell.mailbox) for cell in self.cells.values()), self.crashes)
