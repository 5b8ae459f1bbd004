"""The life of one actor: a mailbox, and the one task that empties it.

Invariants:
- One task touches an instance, one message at a time, in the order of the mailbox. A message leaves the mailbox to be
  handled, to be answered with an error, or because its asker gave up. A message without an asker that is lost at the
  end raises an alert.
- A cell leaves the system only with an empty mailbox, and no checkpoint lies between the look at the mailbox and the
  leaving: a message finds this cell or makes the next one.
- An instance is loaded for a message, never without one. A cell that has crashed stays for `window` seconds after the
  pause that followed, with or without an instance: leaving and coming back does not reset the circuit breaker.
- While a handler runs, `waits` holds the cells it has asked; following these edges never leads back to it.

Rejected:
- an instance that is loaded again at once after a crash. One that could no longer be loaded was tried 348 times an
  hour, without a message to load it for;
- a context variable alone for "which actor asks". Tasks inherit it and outlive the handler: they were refused with a
  false cycle, and got past a drain. `asking_cell` reads the tree of tasks;
- a cancel scope for each message, which costs a third of an ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
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
from svc_actors.runtime.message import Message
from svc_actors.runtime.supervision import ActorAlert, AlertKind

if TYPE_CHECKING:
    from svc_actors.runtime.actor import Actor
    from svc_actors.runtime.system import Kind

MESSAGES_BEFORE_YIELDING: Final = 32
"""A handler may have no checkpoint at all, so after so many messages the cell yields to other tasks."""


class Cell:
    """A live actor. Created by its first message, gone when it has been idle for long enough."""

    __slots__ = (
        "actor",
        "check_at",
        "crash",
        "crashes",
        "current",
        "due",
        "failed",
        "forget_at",
        "idle_since",
        "key",
        "kind",
        "leaving",
        "mailbox",
        "parked",
        "pause",
        "refusing_until",
        "scope",
        "task",
        "tripped",
        "waits",
    )

    def __init__(self, kind: Kind, key: str) -> None:
        self.kind = kind
        self.key = key
        # A list, since an empty deque takes 600 bytes; taking the first of a mailbox's messages moves 2 KB at the most.
        self.mailbox: list[Message] = []
        self.actor: Actor | None = None
        self.task: trio.lowlevel.Task | None = None
        self.parked = False
        self.leaving = False
        self.idle_since = inf
        # The message being handled, the cells that it waits for, its deadline, and the scope that ends it then.
        self.current: Message | None = None
        self.waits: list[Cell] = []
        self.due = inf
        self.scope: trio.CancelScope
        self.check_at = inf
        # The crash not yet dealt with, the times of those before, how long they count, and the pause after the last.
        self.crash: tuple[str, BaseException] | None = None
        self.crashes: tuple[float, ...] = ()
        self.forget_at = -inf
        self.pause: trio.CancelScope | None = None
        self.refusing_until: float | None = None
        # Since the last message that was handled without a crash: has it crashed, and has it been refusing messages.
        self.failed = False
        self.tripped = False

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.key}"

    def put(self, message: Message) -> None:
        """Queue a message behind the others, or raise `MailboxFull` or `ActorUnavailable` at once."""
        if self.refusing_until is not None:
            raise ActorUnavailable(str(self), max(0.0, self.refusing_until - trio.current_time()))
        if len(self.mailbox) >= self.kind.settings.mailbox_limit:
            raise MailboxFull(str(self), self.kind.settings.mailbox_limit)
        self.mailbox.append(message)
        message.mailbox = self.mailbox
        # The clock may have told it to leave in this very moment, before its task ran: it stays for the message.
        self.leaving = False
        if self.parked:
            self.wake()

    def runs(self, task: trio.lowlevel.Task) -> bool:
        """Whether a task is this actor's own, or a descendant of its handler.

        Trio's nurseries end before the function that opened them, so such a task is over when the handler is. A task
        that the handler started in another's nursery is elsewhere in the tree.
        """
        while task is not self.task:
            if task.parent_nursery is None:
                return False
            task = task.parent_nursery.parent_task
        return True

    def refuse_cycle(self, asking: Cell) -> None:
        """Raise `AskCycle` if this cell waits, through any number of others, for `asking`."""
        # A search over the edges `waits`. It remembers from where each cell was reached, to name the whole circle.
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

    def check_idle(self, now: float) -> None:
        """The time has come for which this cell asked: it may have been idle for long enough."""
        # It may have worked in between, and then asks again: timers are not moved at each message.
        self.check_at = inf
        if self.parked and self._leaves_at() <= now:
            self.leaving = True
            self.wake()
        elif self.parked:
            self._check_at(self._leaves_at())

    def end_overdue(self) -> None:
        """Answer and alert now; cancelling may take effect late, or never if a thread hangs.

        Noted as a crash at this moment, so it counts as one however the handler ends from here on."""
        if (message := self.current) is None:
            return
        overdue = HandlerOverdue(str(self), message.name, self.kind.system.handler_deadline)
        self._note_crash(message.name, overdue)
        message.fail(self._crashed(message, overdue))
        self._alert(AlertKind.OVERDUE, message.name, overdue)
        self.scope.cancel()

    def begin_drain(self) -> None:
        """Pauses end early, and an empty mailbox is now reason enough to leave."""
        if self.pause is not None:
            self.pause.cancel()
        self.wake()

    async def run(self) -> None:
        """The actor's task, from its first message until it has been idle."""
        self.task = trio.lowlevel.current_task()
        _cell.set(self)
        handled = 0
        try:
            while True:
                # One scope for all messages, since one for each would cost a third of an ask. It is cancelled only to
                # end a handler that is overdue, which is a crash; the next round has a new one.
                with trio.CancelScope() as self.scope:
                    while self.crash is None:
                        if self.mailbox:
                            if self.kind.system.carried:
                                self._carry(self.mailbox[0].asker)
                            # The message stays in the mailbox while the instance is loaded: a crash of that must not
                            # take it along, and the next attempt is for the same message.
                            if self.actor is None:
                                await self._activate()
                            else:
                                await self._handle(self._take(), self.actor)
                            handled += 1
                            if handled == MESSAGES_BEFORE_YIELDING:
                                handled = 0
                                await trio.lowlevel.checkpoint()
                        # Idle for `idle_after`, and a crash is `window` seconds ago: it counts as recovered.
                        elif self.leaving:
                            self._note_success("idle")
                            return
                        # Without an instance (nothing there to load) and without a crash to remember, nothing to keep.
                        elif self.kind.system.draining or (self.actor is None and not self.crashes):
                            return
                        else:
                            handled = 0
                            self._park()
                            await trio.lowlevel.wait_task_rescheduled(self._abort_park)
                await self._recover()
        finally:
            self._close()

    def _carry(self, asker: trio.lowlevel.Task | None) -> None:
        """Take over from the asker the values of the variables that the system carries."""
        for variable, otherwise in self.kind.system.carried:
            variable.set(otherwise if asker is None else asker.context.get(variable, otherwise))

    async def _handle(self, message: Message, actor: Actor) -> None:
        try:
            value = await self._attempt(message, actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            answer = answer_in(error)
            heard = message.fail(answer or self._crashed(message, error))
            if answer is None:
                self._note_crash(message.name, error)
            # A DomainError is an answer, so the handler worked; unless it was overdue, which was noted as a crash.
            elif self.crash is None:
                self._note_success(message.name)
                if not heard:
                    self._alert(AlertKind.UNHEARD, message.name, answer)
        except BaseException:  # Cancelled half-way: by the deadline, which has its alert, or by the system's end.
            cut = self._crashed(message, self.crash[1] if self.crash else None)
            if not message.fail(cut) and not self.scope.cancel_called:
                self._alert(AlertKind.LOST, message.name, cut)
            raise
        else:
            message.answer(value)
            if self.failed and self.crash is None:
                self._note_success(message.name)

    async def _attempt(self, message: Message, actor: Actor) -> object:
        """Run a handler, or `activate`, with its deadline."""
        self.current = message
        self.kind.system.begins(self)
        try:
            return await message.method(actor, *message.args, **message.kwargs)
        except BaseExceptionGroup as group:
            failures, cancellations = group.split(Exception)
            if cancellations is None:
                raise
            # Cancelled, and a task of the handler's own nursery failed while it cleaned up: neither may hide the other.
            # The cancellation goes on, as Trio requires, and the failure is noted.
            if failures is not None:
                self._note_crash(message.name, failures)
            raise cancellations from None
        finally:
            self.current = None
            self.kind.system.ends(self)

    async def _activate(self) -> None:
        """Load an instance. A `DomainError` answers the first message (what it is to load may not exist)."""
        try:
            actor = self.kind.make(self)
            await self._attempt(Message(type(actor).activate), actor)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the crash that supervision is for
            if (answer := answer_in(error)) is None:
                self._note_crash("activate", error)
            # The mailbox may be empty: the asker gave up while the instance was loaded.
            elif self.mailbox and self.crash is None and not self._take().fail(answer):
                self._alert(AlertKind.UNHEARD, "activate", answer)
        else:
            self.actor = actor
            self.kind.activations += 1

    async def _recover(self) -> None:
        """Discard the instance and pause; the next message loads another."""
        if self.crash is None:
            return
        (during, error), self.crash = self.crash, None
        self.actor = None
        self.failed = True
        self.kind.crashes += 1
        now = trio.current_time()
        verdict = self.kind.settings.restart.judge(self.crashes, now, tripped=self.tripped)
        self.crashes = verdict.crashes
        self.forget_at = now + verdict.pause + self.kind.settings.restart.window
        self._alert(AlertKind.REFUSING if verdict.refuse else AlertKind.CRASHED, during, error, verdict.pause)
        if verdict.refuse:
            self.tripped = True
            self.refusing_until = now + verdict.pause
            self._refuse_askers(ActorUnavailable(str(self), verdict.pause))
        # The pause is interruptible: a drain must not wait for the cool-down of a broken actor, whose waiting messages
        # get one last attempt.
        try:
            with trio.CancelScope() as self.pause:
                if self.mailbox or not self.kind.system.draining:
                    await trio.sleep(verdict.pause)
        finally:
            self.pause, self.refusing_until = None, None

    def _take(self) -> Message:
        message = self.mailbox.pop(0)
        message.mailbox = None
        return message

    def _refuse_askers(self, error: ActorUnavailable) -> None:
        """Messages without an asker wait. An asker gets its answer now instead of after the cool-down, and knows that
        its message was not handled."""
        waiting = list(self.mailbox)
        self.mailbox.clear()
        for message in waiting:
            if message.asker is None:
                self.mailbox.append(message)
            else:
                message.mailbox = None
                message.fail(error)

    def _park(self) -> None:
        """Called before the task sleeps until there may be something to do; it looks again in any case."""
        self.idle_since = self.kind.system.now()
        self._check_at(self._leaves_at())
        self.parked = True

    def _abort_park(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self.parked = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _leaves_at(self) -> float:
        """When a parked cell has nothing left to keep: neither a recently used instance nor a recent crash."""
        idle_until = self.idle_since + self.kind.settings.idle_after if self.actor is not None else self.idle_since
        return max(idle_until, self.forget_at)

    def _check_at(self, when: float) -> None:
        if when < self.check_at:
            self.check_at = when
            self.kind.system.call_at(when, self)

    def _note_crash(self, during: str, error: BaseException) -> None:
        """Leave it to the task, once the handler has ended. A second crash of one handler changes nothing, but raises
        an alert as well."""
        if self.crash is None:
            self.crash = (during, error)
        else:
            self._alert(AlertKind.CRASHED, during, error)

    def _note_success(self, during: str) -> None:
        if self.failed:
            self.failed = self.tripped = False
            self._alert(AlertKind.RECOVERED, during)

    def _crashed(self, message: Message, error: BaseException | None) -> ActorCrashed:
        crashed = ActorCrashed(str(self), message.name)
        crashed.__cause__ = error
        return crashed

    def _alert(
        self, kind: AlertKind, during: str, error: BaseException | None = None, retry_after: float | None = None
    ) -> None:
        self.kind.system.alert(ActorAlert(kind, str(self), during, error, retry_after))

    def _close(self) -> None:
        """Leave the system. If the system's end cancelled this task, askers get `Draining`, and messages without one
        raise an alert."""
        self.kind.system.forget(self)
        self.task = None
        if self.crash is not None:
            self._alert(AlertKind.CRASHED, *self.crash)
        while self.mailbox:
            message = self._take()
            if not message.fail(draining := Draining(str(self))):
                self._alert(AlertKind.LOST, message.name, draining)


def asking_cell() -> Cell | None:
    """The actor whose handler runs the code that calls this, or None outside of all handlers.

    The context is only a hint, because tasks inherit it wherever they are started: what counts is that the task is
    part of the handler, so that the handler cannot end before it.
    """
    cell = _cell.get()
    return cell if cell is not None and cell.runs(trio.lowlevel.current_task()) else None


_cell: ContextVar[Cell | None] = ContextVar("svc_actors.runtime.cell", default=None)
