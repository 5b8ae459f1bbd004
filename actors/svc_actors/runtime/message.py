"""A message to an actor, and the answer to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

import trio


class Message:
    """A call on its way. `asker`: the task that waits for the answer, or None. `mailbox`: where the message waits, or
    None once its handler has started."""

    __slots__ = ("args", "asker", "error", "kwargs", "mailbox", "method", "value")

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
        self.mailbox: list[Message] | None = None
        self.value: object = None
        self.error: BaseException | None = None

    @property
    def name(self) -> str:
        return getattr(self.method, "__name__", repr(self.method))

    def answer(self, value: object) -> None:
        # None also after the deadline has answered: a handler that returns late changes nothing of that.
        if self.asker is not None:
            self.value = value
            trio.lowlevel.reschedule(self.asker)
            self.asker = None

    # `asker` is None from the first answer on, so a message is answered once, whichever comes first.
    def fail(self, error: BaseException) -> bool:
        """Answer with an error; False if no task waits for it."""
        if self.asker is None:
            return False
        self.error = error
        trio.lowlevel.reschedule(self.asker)
        self.asker = None
        return True

    def abandon(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        """The asker is cancelled while it waits. A handler that has started goes on; a message that waits is dropped,
        since abandoned ones would keep others out of the mailbox."""
        self.asker = None
        if self.mailbox is not None:
            self.mailbox.remove(self)  # At most `mailbox_limit` comparisons, and only for an asker that gives up.
            self.mailbox = None
        return trio.lowlevel.Abort.SUCCEEDED
