"""The two faces of an actor: the class to derive from (`Actor`), and the address to send messages to (`Ref`).

    class Counter(Actor):
        async def activate(self) -> None:
            self.total = await load(self.key)

        async def add(self, amount: int) -> int: ...

    total = await system.ref(Counter, "visits").ask(Counter.add, 1)

A message is a method and its arguments, so a type checker checks it as it checks a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, cast, final

import trio

from svc_actors.runtime.cell import asking_cell
from svc_actors.runtime.message import Message

if TYPE_CHECKING:
    from svc_actors.runtime.system import ActorSystem, Kind

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")
T = TypeVar("T")


class Actor:
    """The single writer of one thing's state.

    Handlers are its async methods, run one at a time. They are short, and what they start ends with them (long work is
    a task of the service, which reports back by a message). `key` and `system` are set from `activate` on, not yet in
    `__init__`. An instance ends when it has been idle, or by a crash, so what must last has to be stored before the
    handler returns.
    """

    key: str
    system: ActorSystem

    async def activate(self) -> None:
        """Load the state. Runs before the first message, and before the first one after a crash.

        A `DomainError` from here answers the message that woke the actor (what it is to load may not exist); the actor
        is not kept. Any other error is a crash.
        """


@final
class Ref(Generic[A]):
    """The address of an actor, live or not. Cheap to make and to keep; equal when type and key are."""

    __slots__ = ("_kind", "key")

    def __init__(self, kind: Kind, key: str) -> None:
        self._kind = kind
        self.key = key

    def __repr__(self) -> str:
        return f"<Ref {self._kind.name}:{self.key}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self._kind is other._kind and self.key == other.key

    def __hash__(self) -> int:
        return hash((id(self._kind), self.key))

    async def ask(self, method: Callable[Concatenate[A, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the actor run `method`, and return or raise what it did.

        A message whose handler has started is finished even if the asker is cancelled; one that waits is dropped.
        Raises the handler's `DomainError`, or a `DeliveryError`: `MailboxFull`, `ActorUnavailable`, `Draining` and
        `AskCycle` (not started), `ActorCrashed`.
        """
        # Before the message exists: a cancelled asker must not order anything. No further checkpoint until it waits,
        # so the cell that was looked up is still there when the message is put.
        await trio.lowlevel.checkpoint_if_cancelled()
        message = Message(method, args, kwargs, trio.lowlevel.current_task())
        asking = asking_cell()
        cell = self._kind.cell(self.key, asking)
        if asking is not None:
            # The edge is there before anything else can run, so two actors that ask each other at the same moment
            # cannot both pass the check. A handler's nursery may ask one cell twice: hence a list, not a set.
            cell.refuse_cycle(asking)
            cell.put(message)
            asking.waits.append(cell)
            try:
                await trio.lowlevel.wait_task_rescheduled(message.abandon)
            finally:
                asking.waits.remove(cell)
        else:
            cell.put(message)
            await trio.lowlevel.wait_task_rescheduled(message.abandon)
        if message.error is not None:
            try:
                raise message.error
            finally:
                del message  # The error's traceback holds this frame, which must not hold the error.
        return cast(T, message.value)

    def tell(
        self, method: Callable[Concatenate[A, P], Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Queue a message without waiting for its answer. Raises `MailboxFull`, `ActorUnavailable` or `Draining` at
        once. An error of its handler is an alert."""
        self._kind.cell(self.key, asking_cell()).put(Message(method, args, kwargs))
