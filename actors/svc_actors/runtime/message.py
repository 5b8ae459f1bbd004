"""What travels to an actor (`Message`), what it starts beside its handlers (`Work`), and which of them code runs in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from svc_actors.runtime.cell import Cell


class Message:
    """A call on its way. `asker` is the task that waits for the answer, or None once nobody does (or ever did)."""

    __slots__ = ("args", "asker", "error", "kwargs", "method", "value")

    def __init__(
        self,
        method: Callable[..., Awaitable[object]],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] = MappingProxyType({}),
        asker: trio.lowlevel.Task | None = None,
    ) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.asker = asker
        self.value: object = None
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return getattr(self.method, "__name__", repr(self.method))

    def answer(self, value: object) -> None:
        if self.asker is not None:
            self.value = value
            trio.lowlevel.reschedule(self.asker)
            self.asker = None

    def fail(self, error: BaseException) -> bool:
        """Answer with an error; False when nobody waits for it."""
        if self.asker is None:
            return False
        self.error = error
        trio.lowlevel.reschedule(self.asker)
        self.asker = None
        return True

    def abandon(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        """The asker is cancelled while it waits. The message stays where it is."""
        self.asker = None
        return trio.lowlevel.Abort.SUCCEEDED


class Work:
    """Long work spawned under an actor."""

    __slots__ = ("name", "scope", "until_drain")

    def __init__(self, name: str, until_drain: bool) -> None:
        self.name = name
        self.scope = trio.CancelScope()
        self.until_drain = until_drain


inside: ContextVar[Cell | Work | None] = ContextVar("svc_actors.runtime.inside", default=None)
"""What the running code belongs to: an actor's handlers, its work, or None outside of all actors.

Only a handler can close a cycle of asks: nobody waits for work, so the asks of work begin a chain of their own."""
