"""The life of one actor: a mailbox, and the one task that empties it.

Invariants:
- One task touches an instance, one message at a time, in the order of the mailbox. A message leaves the mailbox to be
  handled, to be answered with an error, or because its asker gave up.
- A cell leaves the system only with an empty mailbox, and there is no checkpoint between the check of the mailbox and
  the leaving: so a message either finds this cell or makes the next one.
- A crash ends the instance and nothing else: the next message is handled by a new one, after no pause.
- Nothing leaves a cell's task. It is shielded, so that a cancelled service can still drain; `ActorSystem` ends it.

Rejected:
- pauses after a crash, and refusing messages after many. A new instance has no state of the crashed one that could be
  corrupt, so both only delayed those who asked next;
- an idle time of 300 s. At 100,000 machines 51,702 parked tasks made each full garbage collection half a second long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from svc_actors.runtime.errors import ActorCrashed, Draining, HandlerOverdue, MailboxFull, answer_in

if TYPE_CHECKING:
    from svc_actors.runtime.actor import Actor
    from svc_actors.runtime.system import Kind

MAILBOX_LIMIT: Final = 256

IDLE_AFTER: Final = 5.0
"""Seconds. Long enough that the messages of one order find the actor live, and short enough that of 100,000 actors only
those in use have a task: a live one is some thirty objects, which every full garbage collection visits."""

HANDLER_DEADLINE: Final = 75.0
"""Longer than the store's own bounds together (8 s for a connection, 30 s for a statement, 5 s for the rollback): a
locked row answers the asker with `unavailable`, and only what hangs beyond that is ended as a crash."""


@dataclass(eq=False, slots=True)
class Message:
    """A call on its way. `carried` are the asker's values of the variables that the system carries."""

    method: Callable[..., Awaitable[object]]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    carried: Sequence[object]
    ended: trio.Event = field(default_factory=trio.Event)
    value: object = None
    error: Exception | None = None

    @property
    def name(self) -> str:
        return getattr(self.method, "__name__", repr(self.method))


_handled: ContextVar[Message | None] = ContextVar("svc_actors.runtime.handled", default=None)
"""The message whose handler runs the code. Tasks that a handler starts elsewhere inherit it, and may ask once the
handler has ended."""


def refuse_in_handler(address: str) -> None:
    handled = _handled.get()
    if handled is not None and not handled.ended.is_set():
        raise RuntimeError(f"{address} was asked within the handler {handled.name}: it would wait for itself")


class Cell:
    """A live actor. Created by its first message, gone when it has been idle for long enough."""

    __slots__ = ("_actor", "_arrived", "_scope", "key", "kind", "mailbox")

    def __init__(self, kind: Kind, key: str) -> None:
        self.kind = kind
        self.key = key
        self.mailbox: deque[Message] = deque()
        self._actor: Actor | None = None
        self._arrived = trio.Event()
        self._scope = trio.CancelScope()

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.key}"

    def put(self, message: Message) -> None:
        """Queue a message behind the others, or raise `MailboxFull` at once."""
        if len(self.mailbox) >= MAILBOX_LIMIT:
            raise MailboxFull(str(self), MAILBOX_LIMIT)
        self.mailbox.append(message)
        self.wake()

    def withdraw(self, message: Message) -> None:
        if message in self.mailbox:
            self.mailbox.remove(message)

    def wake(self) -> None:
        self._arrived.set()

    def cut(self) -> None:
        """The actor system ends: cancel the handler, and answer the messages that wait."""
        while self.mailbox:
            self._end(self.mailbox.popleft(), Draining(str(self)))
        self._scope.cancel()

    async def run(self) -> None:
        """The actor's task, from its first message until it has been idle."""
        with trio.CancelScope(shield=True):
            while await self._has_message():
                await self._handle(self.mailbox.popleft())
                _handled.set(None)  # An idle actor keeps no reference to its last message.
        self.kind.forget(self)

    async def _has_message(self) -> bool:
        if not self.mailbox and not self.kind.system.draining:
            self._arrived = trio.Event()
            self._scope = trio.CancelScope(deadline=trio.current_time() + IDLE_AFTER)
            with self._scope:
                await self._arrived.wait()
        return bool(self.mailbox)

    async def _handle(self, message: Message) -> None:
        for variable, value in zip(self.kind.system.carried, message.carried, strict=True):
            variable.set(value)
        _handled.set(message)
        self._scope = trio.CancelScope(deadline=trio.current_time() + HANDLER_DEADLINE)
        try:
            with self._scope:
                if self._actor is None:
                    self._actor = self.kind.make(self.key)
                message.value = await message.method(self._actor, *message.args, **message.kwargs)
                self._end(message)
                return
        except Exception as error:  # noqa: BLE001 - supervision handles a crash of any kind
            # A handler that exceeded its deadline has crashed, whatever error its clean-up raised.
            answer = None if self._overdue else answer_in(error)
            self._end(message, answer or self._crashed(message, error))
        else:
            self._end(message, self._crashed(message, None))

    @property
    def _overdue(self) -> bool:
        return self._scope.cancel_called and not self.kind.system.closed

    def _crashed(self, message: Message, error: Exception | None) -> ActorCrashed:
        """Discard the instance, and report the crash. `error` is None if the handler was cancelled and raised nothing
        else; a shutdown that cancels it is no crash to report."""
        self._actor = None
        if self._overdue:
            overdue = HandlerOverdue(str(self), message.name, HANDLER_DEADLINE)
            overdue.__cause__ = error
            error = overdue
        if error is not None:
            self.kind.crashed(self, message.name, error)
        crashed = ActorCrashed(str(self), message.name)
        crashed.__cause__ = error
        return crashed

    def _end(self, message: Message, error: Exception | None = None) -> None:
        message.error = error
        message.ended.set()
