"""The life of one actor: a mailbox, and the one task that empties it.

Invariants:
- One task touches an instance, one message at a time, in the order of the mailbox. A message leaves the mailbox only to
  be begun, or to be answered with an error.
- A cell leaves the system only with an empty mailbox, and no checkpoint lies between looking and leaving: a message
  finds this cell or makes the next one.
- The work of an instance has ended before the next instance is loaded.
- While a handler runs, `waits` holds the cells it has asked; following these edges never leads back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Final

import trio

from svc_actors.runtime.errors import (
    ActorCrashed,
    ActorUnavailable,
    AskCycle,
    Draining,
    HandlerOverdue,
    MailboxFull,
    answer_in,
)
from svc_actors.runtime.message import Message, Work, inside
from svc_actors.runtime.supervision import ActorAlert, AlertKind

if TYPE_CHECKING:
    from svc_actors.runtime.actor import Actor
    from svc_actors.runtime.system import Kind

MESSAGES_BEFORE_YIELDING: Final = 32
"""A handler need not have a checkpoint, so a long mailbox is left after so many messages to let other tasks run."""


class Cell:
    """A live actor. Made by its first message, gone when it has been idle."""

    __slots__ = (
        "actor",
        "check_at",
        "crash",
        "crashes",
        "current",
        "due",
        "idle_since",
        "key",
        "kind",
        "loaded",
        "mailbox",
        "parked",
        "pause",
        "refusing_until",
        "retiring",
        "scope",
        "task",
        "waits",
        "work",
    )

    def __init__(self, kind: Kind, key: str) -> None:
        self.kind = kind
        self.key = key
        self.mailbox: deque[Message] = deque()
        # The instance, and whether there should be one: a crash takes it, only passivation makes it superfluous.
        self.actor: Actor | None = None
        self.loaded = False
        self.work: dict[Work, None] | None = None
        self.task: trio.lowlevel.Task | None = None
        self.parked = False
        self.retiring = False
        self.idle_since = inf
        # The message being handled, whom it waits for, and when it is late.
        self.current: Message | None = None
        self.waits: list[Cell] = []
        self.due = inf
        self.scope: trio.CancelScope | None = None
        self.check_at = inf
        # The crash not yet dealt with, the times of those before, and the rest that the last one led to.
        self.crash: tuple[str, BaseException] | None = None
        self.crashes: tuple[float, ...] = ()
        self.refusing_until: float | None = None
        self.pause: trio.CancelScope | None = None

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.key}"

    def put(self, message: Message) -> None:
        """Queue a message behind the others, or raise `MailboxFull` or `ActorUnavailable` at once."""
        if self.refusing_until is not None:
            raise ActorUnavailable(str(self), max(0.0, self.refusing_until - trio.current_time()))
        if len(self.mailbox) >= self.kind.settings.mailbox_limit:
            raise MailboxFull(str(self), self.kind.settings.mailbox_limit)
        self.mailbox.append(message)
        self.retiring = False
        if self.parked:
            self.wake()

    def refuse_cycle(self, asking: Cell) -> None:
        """Raise `AskCycle` when this cell waits, through any number of others, for `asking`."""
        reached: dict[Cell, Cell | None] = {self: None}
        open_ends = [self]
        while open_ends:
            cell = open_ends.pop()
            if cell is asking:
                path = [cell]
                while (before := reached[path[-1]]) is not None:
                    path.append(before)
                raise AskCycle(str(self), [str(asking), *(str(step) for step in reversed(path))])
            for onward in cell.waits:
                if onward not in reached:
                    reached[onward] = cell
                    open_ends.append(onward)

    def wake(self) -> None:
        if self.parked and self.task is not None:
            self.parked = False
            trio.lowlevel.reschedule(self.task)

    def check(self, now: float) -> None:
        """The hour this cell asked to be looked at: its handler may be late, or it may have been idle long enough."""
        self.check_at = inf
        if self.current is not None and self.due <= now:
            self._end_overdue(self.current)
        elif self.parked and not self.work and self.idle_since + self.kind.settings.idle_after <= now:
            self.retiring = True
            self.wake()
        elif self.parked and not self.work:
            self._check_at(self.idle_since + self.kind.settings.idle_after)
        if self.due < inf:
            self._check_at(self.due)

    def begin_drain(self) -> None:
        """Rests end early, endless work ends, and an empty mailbox is reason enough to be passivated."""
        for work in self.work or ():
            if work.until_drain:
                work.scope.cancel()
        if self.pause is not None:
            self.pause.cancel()
        self.wake()

    async def run(self) -> None:
        """The actor's task, from its first message until it has been idle."""
        self.task = trio.lowlevel.current_task()
        inside.set(self)
        handled = 0
        try:
            while True:
                if self.crash is not None:
                    await self._recover(*self.crash)
                elif self.actor is None:
                    if not self.mailbox and (self.kind.system.draining or not self.loaded):
                        return
                    await self._activate()
                elif self.mailbox:
                    await self._handle(self.mailbox.popleft(), self.actor)
                    handled += 1
                    if handled == MESSAGES_BEFORE_YIELDING:
                        handled = 0
                        await trio.lowlevel.checkpoint()
                elif (self.retiring or self.kind.system.draining) and not self.work:
                    await self._passivate(self.actor)
                else:
                    handled = 0
                    await self._park()
        finally:
            self._close()

    async def run_work(self, work: Work, fn: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        """The task of one piece of work. Any error but a `DomainError` is the actor's crash."""
        inside.set(work)
        try:
            with work.scope:
                await fn(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            if answer := answer_in(error):
                self._alert(AlertKind.UNHEARD, work.name, answer)
            else:
                self._note_crash(work.name, error)
        finally:
            if self.work is not None:
                del self.work[work]
            self.wake()

    def spawn(
        self, actor: Actor, work: Work, fn: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> trio.CancelScope:
        """Start work for an instance; only the one in charge may have any."""
        if self.actor is not actor:
            raise RuntimeError(f"{self} is no longer in charge of {work.name}: it was discarded or passivated")
        if self.work is None:
            self.work = {}
        self.work[work] = None
        self.kind.system.start(self.run_work, work, fn, args, name=f"{self} {work.name}")
        if work.until_drain and self.kind.system.draining:
            work.scope.cancel()
        return work.scope

    async def _handle(self, message: Message, actor: Actor) -> None:
        try:
            value = await self._attempt(message, actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            answer = answer_in(error)
            heard = message.fail(answer or self._crashed(message, error))
            if answer is None:
                self._note_crash(message.name, error)
            elif not heard:
                self._alert(AlertKind.UNHEARD, message.name, answer)
        else:
            message.answer(value)
        finally:
            if message.asker is not None:  # This task was cancelled half-way.
                message.fail(self._crashed(message, None))

    async def _attempt(self, message: Message, actor: Actor) -> object:
        """Run a handler, or a step of the actor's life, as the one thing that this actor does now."""
        self.current = message
        deadline = self._deadline(message)
        try:
            if deadline is None:
                return await message.method(actor, *message.args, **message.kwargs)
            value: object = None
            with trio.CancelScope() as self.scope:
                self.due = trio.current_time() + deadline
                self._check_at(self.due)
                value = await message.method(actor, *message.args, **message.kwargs)
            if self.scope.cancel_called:
                raise HandlerOverdue(str(self), message.name, deadline)
            return value
        finally:
            self.current = None
            self.due = inf
            self.scope = None

    async def _activate(self) -> None:
        """Load an instance. A `DomainError` answers the first message (there may be no such thing to load)."""
        try:
            actor = self.actor = self.kind.make(self)
            await self._attempt(Message(type(actor).activate), actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            if (answer := answer_in(error)) is None:
                self._note_crash("activate", error)
                return
            self.actor, self.loaded = None, False
            await self._end_work()
            if not (self.mailbox and self.mailbox.popleft().fail(answer)):
                self._alert(AlertKind.UNHEARD, "activate", answer)
        else:
            self.loaded = True
            self.kind.activations += 1

    async def _passivate(self, actor: Actor) -> None:
        step = Message(type(actor).passivate)
        self.actor, self.loaded, self.retiring = None, False, False
        try:
            await self._attempt(step, actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            # The instance is gone either way, what it knew is in the store: nothing to restart, but not to be hidden.
            self._alert(AlertKind.CRASHED, step.name, error)

    async def _recover(self, during: str, error: BaseException) -> None:
        """Discard the instance and rest, so that the next turn of the loop loads another."""
        self.actor = None
        await self._end_work()
        self.crash = None
        self.kind.crashes += 1
        now = trio.current_time()
        verdict = self.kind.settings.restart.judge(self.crashes, now)
        self.crashes = verdict.crashes
        self._alert(AlertKind.REFUSING if verdict.refuse else AlertKind.CRASHED, during, error, verdict.pause)
        if verdict.refuse:
            self.refusing_until = now + verdict.pause
            # Told messages wait; an asker is better served by an answer now, and its message was not begun.
            kept = [m for m in self.mailbox if not m.fail(ActorUnavailable(str(self), verdict.pause))]
            self.mailbox = deque(kept)
        try:
            with trio.CancelScope() as self.pause:
                if self.mailbox or not self.kind.system.draining:
                    await trio.sleep(verdict.pause)
        finally:
            self.pause, self.refusing_until = None, None

    async def _end_work(self) -> None:
        for work in self.work or ():
            work.scope.cancel()
        while self.work:
            await self._park()

    async def _park(self) -> None:
        """Wait until there may be something to do; the caller looks again in any case."""
        self.idle_since = trio.current_time()
        if self.actor is not None:
            self._check_at(self.idle_since + self.kind.settings.idle_after)
        self.parked = True
        await trio.lowlevel.wait_task_rescheduled(self._abort_park)

    def _abort_park(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self.parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _check_at(self, when: float) -> None:
        if when < self.check_at:
            self.check_at = when
            self.kind.system.call_at(when, self)

    def _end_overdue(self, message: Message) -> None:
        """Answer and alert now; cancelling may take effect late, or never where a thread hangs."""
        overdue = HandlerOverdue(str(self), message.name, self._deadline(message) or 0.0)
        self.due = inf
        message.fail(self._crashed(message, overdue))
        self._alert(AlertKind.OVERDUE, message.name, overdue)
        if self.scope is not None:
            self.scope.cancel()

    def _deadline(self, message: Message) -> float | None:
        deadline: float | None = getattr(message.method, "handler_deadline", self.kind.settings.handler_deadline)
        return deadline

    def _note_crash(self, during: str, error: BaseException) -> None:
        """Leave it to the task's next turn. A crash on a crash, or after the end, changes nothing but is told."""
        if self.crash is None and self.task is not None:
            self.crash = (during, error)
        else:
            self._alert(AlertKind.CRASHED, during, error)

    def _crashed(self, message: Message, error: BaseException | None) -> ActorCrashed:
        crashed = ActorCrashed(str(self), message.name)
        crashed.__cause__ = error
        return crashed

    def _alert(self, kind: AlertKind, during: str, error: BaseException, retry_after: float | None = None) -> None:
        self.kind.system.alert(ActorAlert(kind, str(self), during, error, retry_after))

    def _close(self) -> None:
        """Leave the system. Whoever still waits, because the task was cancelled, is told that nothing was begun."""
        self.kind.system.forget(self)
        self.task = None
        while self.mailbox:
            self.mailbox.popleft().fail(Draining(str(self)))
