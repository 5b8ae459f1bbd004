"""The loop that delivers a queue of mail, one mail at a time over one session with the relay.

Every service has one such loop for its own mail. A panel has a second one for the mail of sites, with separate
sessions, so that neither waits for the other.

Invariants:
- a mail that the relay took is not sent again while this process lives, even if the database could not record it:
  outcomes are kept until they are stored, and nothing else is sent before that;
- while the relay cannot be used it is tried with a growing pause, whatever waits, and the attempts of the mails that
  wait are not counted. A refusal of one sender is no failure of the relay. Nor is the end of a session that has
  answered a mail: relays limit the mails of one;
- the log and alerts name no recipient. Answers of relays do, so they are stored with the mail only.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

import structlog
import trio

from svc_actors.mail.alert import DeliveryAlert
from svc_actors.mail.relay import Deferred, Outcome, Rejected, Relay, RelayError, Sent
from svc_actors.mail.settings import MailSettings
from svc_actors.store import Database

NOW: Final = "now"
"""The announcement for a mail whose sender waits for the outcome: a relay that was away is tried at once."""
LONGEST_LOOK: Final = 60.0
"""The longest pause between two looks: an announcement may be lost with the process that wrote the mail."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
_SESSION: Final = 50
"""Mails per session; relays have a limit of their own."""


class Claimed(Protocol):
    """A mail for one attempt. `sender`: that of the envelope; None for the service's own."""

    @property
    def id(self) -> UUID: ...
    @property
    def recipient(self) -> str: ...
    @property
    def sender(self) -> str | None: ...


Mail = TypeVar("Mail", bound=Claimed)


class NoContentError(Exception):
    """The content of a mail is lost; the message says why."""


class MailQueue(Protocol[Mail]):
    """The queue as its delivery needs it. `name` is in the log, `channel` announces mail that is due."""

    name: str
    channel: str

    async def due(self, most: int) -> Sequence[UUID]:
        """The ids of mails that are due, in the order in which they are sent."""

    async def seconds_to_next(self) -> float | None:
        """Seconds until a mail is due; None if none waits."""

    async def claim(self, mail_id: UUID) -> Mail | None:
        """Count an attempt and schedule the next; None if the mail is not due."""

    async def content(self, mail: Mail) -> bytes:
        """Raises `NoContentError`."""

    async def sent(self, mail: Mail) -> None: ...
    async def deferred(self, mail: Mail, reason: str) -> None: ...
    async def rejected(self, mail: Mail, reason: str) -> None: ...

    async def note_relay_problem(self, mails: Collection[UUID], reason: str) -> None:
        """Record why these mails still wait."""

    async def fail_expired(self) -> None:
        """Fail mails that have passed their deadline."""


class Delivery(Generic[Mail]):
    def __init__(
        self, database: Database, queue: MailQueue[Mail], settings: MailSettings, alert: DeliveryAlert
    ) -> None:
        self._database = database
        self._queue = queue
        self._settings = settings
        self._alert = alert
        self._log = structlog.get_logger(__name__).bind(queue=queue.name)
        self._threads = trio.CapacityLimiter(4)
        self._outcomes: dict[UUID, tuple[Mail, Outcome]] = {}
        self._woken = trio.Event()
        self._urgent = trio.Event()
        self._answers = 0
        """How many mails the relay has answered, in all sessions."""
        self._failures = 0
        self._not_before = 0.0

    async def run(self) -> None:
        """Deliver until cancelled. Raises what the database raises; a new call resumes where it was."""
        with self._database.announcements.listener(self._queue.channel, self._wake):
            while True:
                self._woken, self._urgent = trio.Event(), trio.Event()
                pause = await self.round()
                with trio.move_on_after(pause):
                    await self._woken.wait()
                # Mail that comes while the relay is away causes no further rounds, unless its sender waits.
                with trio.move_on_at(self._not_before):
                    await self._urgent.wait()

    def _wake(self, payload: str) -> None:
        if payload == NOW:
            self._not_before = 0.0
            self._urgent.set()
        self._woken.set()

    async def round(self) -> float:
        """Deliver what is due; returns the seconds to the next look."""
        await self._store_outcomes()
        await self._queue.fail_expired()
        while trio.current_time() >= self._not_before and (due := await self._queue.due(_SESSION)):
            await self._deliver(due)
        await self._alert.tell()
        seconds = await self._queue.seconds_to_next()
        if seconds is None:
            return LONGEST_LOOK
        # Never 0, because this loop would spin if the database's clock differs from ours.
        return min(max(seconds, self._not_before - trio.current_time(), 0.05), LONGEST_LOOK)

    async def _deliver(self, due: Sequence[UUID]) -> None:
        """Deliver these mails, with a further session whenever the relay ends one that has answered a mail. The mail
        that was under way then comes first in the next session, as the same attempt. If it ends this session without an
        answer as well, it waits for its next attempt."""
        left = deque(due)
        claimed: Mail | None = None
        while left:
            answers = self._answers
            try:
                async with Relay.open(self._settings, self._threads) as relay:
                    while left:
                        claimed = claimed or await self._queue.claim(left[0])
                        if claimed is not None:
                            await self._attempt(relay, claimed)
                        claimed = None
                        left.popleft()
            except RelayError as error:
                if self._answers == answers:
                    await self._relay_failed(error, left)
                    return
                self._log.info("mail.session_ended", error=str(error), answers=self._answers - answers)

    async def _relay_failed(self, error: RelayError, left: Collection[UUID]) -> None:
        self._alert.relay_failed(error)
        pause = min(FIRST_PAUSE * 2 ** min(self._failures, 20), LONGEST_PAUSE)
        self._failures += 1
        self._not_before = trio.current_time() + pause * random.uniform(0.8, 1.0)  # noqa: S311
        self._log.warning("mail.relay_failed", error=str(error), pause=round(pause, 1))
        await self._queue.note_relay_problem(left, str(error))

    async def _attempt(self, relay: Relay, mail: Mail) -> None:
        try:
            content = await self._queue.content(mail)
        except NoContentError as error:
            await self._queue.rejected(mail, str(error))
            return
        try:
            outcome = await relay.send(mail.recipient, content, sender=mail.sender)
        except RelayError as error:
            await self._queue.deferred(mail, str(error))
            raise
        self._answers += 1
        self._failures = 0
        self._alert.answered(outcome)
        self._outcomes[mail.id] = (mail, outcome)
        await self._store_outcomes()

    async def _store_outcomes(self) -> None:
        while self._outcomes:
            mail, outcome = next(iter(self._outcomes.values()))
            match outcome:
                case Sent():
                    await self._queue.sent(mail)
                    self._log.info("mail.sent", mail_id=str(mail.id))
                case Deferred():
                    await self._queue.deferred(mail, outcome.reason)
                    self._log.info("mail.deferred", mail_id=str(mail.id), code=outcome.code)
                case Rejected():
                    await self._queue.rejected(mail, outcome.reason)
                    self._log.info("mail.rejected", mail_id=str(mail.id), code=outcome.code)
            del self._outcomes[mail.id]
