"""The loop that delivers the mail queue, one mail at a time over one session.

Invariants:
- a mail that the relay took is not sent again while this process lives, even if the database could not record it:
  outcomes are kept until they are stored, and nothing else is sent before that;
- while the relay cannot be used it is tried with a growing pause, whatever waits, and the attempts of the mails that
  wait are not counted. The end of a session that has answered a mail is no failure of the relay: relays limit the mails
  of one;
- the log and alerts name no recipient. Answers of relays do, so they are stored with the mail only;
- when mail could not be delivered for `ALERT_AFTER` seconds an alert opens, which closes with the next mail that is
  sent.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.mail import queue
from svc_actors.mail.queue import CHANNEL, NOW, ClaimedMail, Outbox
from svc_actors.mail.relay import Deferred, Outcome, Rejected, Relay, RelayError, Sent
from svc_actors.mail.settings import MailSettings
from svc_actors.sealing import CannotUnseal
from svc_actors.store import Database

ALERT: Final = "mail"
ALERT_AFTER: Final = 900.0
LONGEST_LOOK: Final = 60.0
"""The longest pause between two looks: an announcement may be lost with the process that wrote the mail."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
_BATCH: Final = 50
"""Mails per session; relays have a limit of their own."""

log = structlog.get_logger(__name__)


class Delivery:
    def __init__(self, database: Database, outbox: Outbox, settings: MailSettings) -> None:
        self._database = database
        self._outbox = outbox
        self._settings = settings
        self._threads = trio.CapacityLimiter(4)
        self._outcomes: dict[UUID, Outcome] = {}
        self._woken = trio.Event()
        self._answers = 0
        """Of the relay, about mails."""
        self._failures = 0
        self._not_before = 0.0
        self._failing_since: float | None = None
        self._failure: RelayError | Deferred | None = None
        self._sent = False

    async def run(self) -> None:
        """Deliver until cancelled. Raises what the database raises; a new call resumes where it was."""
        with self._database.announcements.listener(CHANNEL, self._wake):
            while True:
                self._woken = trio.Event()
                pause = await self._round()
                with trio.move_on_after(pause):
                    await self._woken.wait()

    def _wake(self, payload: str) -> None:
        if payload == NOW:
            self._not_before = 0.0
        self._woken.set()

    async def _round(self) -> float:
        """Deliver what is due; returns the seconds to the next look."""
        await self._store_outcomes()
        await queue.fail_expired_mails(self._database)
        while trio.current_time() >= self._not_before and (due := await queue.due(self._database, _BATCH)):
            await self._deliver(due)
        await self._tell()
        seconds = await queue.seconds_to_next(self._database)
        if seconds is None:
            return LONGEST_LOOK
        # Never 0, because this loop would spin if the database's clock differs from ours.
        return min(max(seconds, self._not_before - trio.current_time(), 0.05), LONGEST_LOOK)

    async def _deliver(self, due: list[UUID]) -> None:
        """Deliver over as many sessions as the relay makes of it. The mail that was under way when one ended is the
        first of the next, in the same attempt; one that ends this session too waits for its own next attempt."""
        left = deque(due)
        claimed: ClaimedMail | None = None
        while left:
            answers = self._answers
            try:
                async with Relay.open(self._settings, self._threads) as relay:
                    while left:
                        claimed = claimed or await queue.claim(self._database, left[0])
                        if claimed is not None:
                            await self._attempt(relay, claimed)
                        claimed = None
                        left.popleft()
            except RelayError as error:
                if self._answers == answers:
                    await self._relay_failed(error)
                    return
                log.info("mail.session_ended", error=str(error), answers=self._answers - answers)

    async def _relay_failed(self, error: RelayError) -> None:
        self._failed(error)
        pause = min(FIRST_PAUSE * 2 ** min(self._failures, 20), LONGEST_PAUSE)
        self._failures += 1
        self._not_before = trio.current_time() + pause * random.uniform(0.8, 1.0)  # noqa: S311
        log.warning("mail.relay_failed", error=str(error), pause=round(self._not_before - trio.current_time(), 1))
        await queue.note_relay_problem(self._database, str(error))

    async def _attempt(self, relay: Relay, mail: ClaimedMail) -> None:
        try:
            content = self._outbox.content(mail)
        except CannotUnseal as error:
            await queue.rejected(self._database, mail.id, str(error))
            return
        try:
            outcome = await relay.send(mail.recipient, content)
        except RelayError as error:
            await queue.deferred(self._database, mail.id, str(error))
            raise
        self._answers += 1
        self._failures = 0
        if isinstance(self._failure, RelayError):
            self._failing_since, self._failure = None, None
        self._outcomes[mail.id] = outcome
        await self._store_outcomes()

    async def _store_outcomes(self) -> None:
        while self._outcomes:
            mail_id, outcome = next(iter(self._outcomes.items()))
            match outcome:
                case Sent():
                    await queue.sent(self._database, mail_id)
                    self._failing_since, self._failure, self._sent = None, None, True
                    log.info("mail.sent", mail_id=str(mail_id))
                case Deferred():
                    await queue.deferred(self._database, mail_id, outcome.reason)
                    self._failed(outcome)
                    log.warning("mail.deferred", mail_id=str(mail_id), code=outcome.code)
                case Rejected():
                    await queue.rejected(self._database, mail_id, outcome.reason)
                    log.warning("mail.rejected", mail_id=str(mail_id), code=outcome.code)
            del self._outcomes[mail_id]

    def _failed(self, failure: RelayError | Deferred) -> None:
        self._failure = failure
        if self._failing_since is None:
            self._failing_since = trio.current_time()

    async def _tell(self) -> None:
        """Open or close the alert. An empty queue does not close it: the mail may have been given up."""
        if self._failing_since is None:
            if self._sent:
                await self._database.transact(partial(set_alert, key=ALERT, message=None))
                self._sent = False
        elif trio.current_time() - self._failing_since >= ALERT_AFTER:
            # A relay that fails stops all mail. A deferral may concern only a server behind the relay, or even a single
            # recipient.
            severity, why = Severity.CRITICAL, str(self._failure)
            if isinstance(self._failure, Deferred):
                severity, why = Severity.WARNING, f"the relay answers {self._failure.code} (svc mail list has the rest)"
            message = f"Mail cannot be delivered: {why}"
            await self._database.transact(partial(set_alert, key=ALERT, message=message, severity=severity))
