"""The two faces of an actor: the class to derive from (`Actor`), and the address to send messages to (`Ref`).

    class Counter(Actor):
        async def add(self, amount: int) -> int: ...

    total = await system.ref(Counter, "visits").ask(Counter.add, 1)

A message is a method and its arguments, so a type checker checks it as it checks a call.

Rejected: handlers that ask other actors, with a search for cycles of actors that wait for each other. No handler
needed it, and an ask in a handler is refused at once, where a cycle would wait for its deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, cast, final

import trio

from svc_actors.runtime.cell import Message, refuse_in_handler

if TYPE_CHECKING:
    from svc_actors.runtime.system import ActorSystem, Kind

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")
T = TypeVar("T")


class Actor:
    """The single writer of one thing's state.

    Handlers are its async methods, run one at a time. A handler decides and writes; longer work is a task or a job of
    the service, which reports back by a message. `key` and `system` are set after `__init__`. An instance ends when it
    has been idle, or by a crash, so what must last has to be stored before the handler returns.
    """

    key: str
    system: ActorSystem


@final
@dataclass(frozen=True, slots=True)
class Ref(Generic[A]):
    """The address of an actor, live or not. Cheap to make and to keep; equal when type and key are."""

    kind: Kind = field(repr=False)
    key: str

    async def ask(self, method: Callable[Concatenate[A, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the actor run `method`, and return or raise what it did.

        A message whose handler has started is finished even if the asker is cancelled; one that waits is dropped.
        Raises the handler's `DomainError`, or a `DeliveryError`: `MailboxFull` and `Draining` (not started),
        `ActorCrashed`. Raises RuntimeError within a handler: two actors that ask each other would wait for ever.
        """
        # Checked before the message exists, because a cancelled caller must not order anything. There is no further
        # checkpoint until the wait below, so the cell that was looked up still exists when the message is put.
        await trio.lowlevel.checkpoint_if_cancelled()
        refuse_in_handler(f"{self.kind.name}:{self.key}")
        carried = [variable.get() for variable in self.kind.system.carried]
        message = Message(method, args, kwargs, carried)
        cell = self.kind.cell(self.key)
        cell.put(message)
        try:
            await message.ended.wait()
        except trio.Cancelled:
            # A message that nobody waits for would take up room in the mailbox.
            cell.withdraw(message)
            raise
        if message.error is not None:
            try:
                raise message.error
            finally:
                message.error = None  # Breaks a reference cycle: the error's traceback refers to the message.
        return cast(T, message.value)
