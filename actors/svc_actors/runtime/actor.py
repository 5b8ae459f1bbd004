"""What an actor is to those who write one (`Actor`), and to those who talk to one (`Ref`).

    class Counter(Actor):
        async def activate(self) -> None:
            self.total = await load(self.key)

        async def add(self, amount: int) -> int: ...

    total = await system.ref(Counter, "visits").ask(Counter.add, 1)

A message is a method and its arguments, so a type checker checks it as it checks a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar, TypeVarTuple, cast, final

import trio

from svc_actors.runtime.cell import Cell
from svc_actors.runtime.message import Message, Work, inside

if TYPE_CHECKING:
    from svc_actors.runtime.system import ActorSystem, Kind

A = TypeVar("A", bound="Actor")
P = ParamSpec("P")
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[object]])


class Actor:
    """One thing that changes, and the only one who changes it.

    Handlers are its async methods, run one at a time; they are short. `key`, `system` and everything below are there
    from `activate` on, not yet in `__init__`. An instance ends by passivation or by a crash, so what must last belongs
    into a store before the handler returns.
    """

    key: str
    system: ActorSystem
    _cell: Cell

    async def activate(self) -> None:
        """Load the state. Runs before the first message, and again after a crash.

        A `DomainError` from here answers the message that woke the actor (there may be no such thing to load); the
        actor is not kept. Any other error is a crash.
        """

    async def passivate(self) -> None:
        """Runs when the actor has been idle, before it is dropped. It may not spawn work any more."""

    def spawn(
        self,
        fn: Callable[[*Arguments], Awaitable[object]],
        *args: *Arguments,
        name: str | None = None,
        until_drain: bool = False,
    ) -> trio.CancelScope:
        """Run long work beside the handlers, and return what cancels it.

        The actor stays live while it has work, and its work ends before the actor is loaded anew. Work does not touch
        the actor's attributes: it reports by `self.ref().tell(...)`. A `DomainError` that leaves it raises an alert,
        any other error is the actor's crash. A drain waits for work, unless it is endless (`until_drain`): then it is
        cancelled as the drain begins.
        """
        label = name if name is not None else getattr(fn, "__name__", repr(fn))
        return self._cell.spawn(self, Work(label, until_drain), fn, args)

    def ref(self) -> Ref[Self]:
        """This actor's address, to be given to its work and to others."""
        return Ref(self._cell.kind, self.key)


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

        A message once sent is finished even if the asker is cancelled. Raises the handler's `DomainError`, or a
        `DeliveryError`: `MailboxFull`, `ActorUnavailable`, `Draining` and `AskCycle` (not begun), `ActorCrashed`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        message = Message(method, args, kwargs, trio.lowlevel.current_task())
        origin = inside.get()
        cell = self._kind.cell(self.key, origin)
        if isinstance(origin, Cell):
            cell.refuse_cycle(origin)
            cell.put(message)
            origin.waits.append(cell)
            try:
                await trio.lowlevel.wait_task_rescheduled(message.abandon)
            finally:
                origin.waits.remove(cell)
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
        """Queue a message nobody waits for. Raises `MailboxFull`, `ActorUnavailable` or `Draining` at once."""
        self._kind.cell(self.key, inside.get()).put(Message(method, args, kwargs))


def deadline(seconds: float) -> Callable[[Handler], Handler]:
    """Give one handler its own deadline: past it the asker gets `ActorCrashed`, an alert is raised, the handler is
    cancelled and the actor loaded anew."""

    def mark(handler: Handler) -> Handler:
        handler.__dict__["handler_deadline"] = seconds
        return handler

    return mark
