"""The loop that delivers the mail of sites, over a session of its own: the panel's own mail waits for none of it.

Invariants:
- a mail that the relay took is not sent again while this process lives, even if the database could not record it:
  outcomes are kept until they are stored, and nothing else is sent before that;
- while the relay cannot be used it is tried with a growing pause, and the attempts of the mails that wait are not
  counted. A refusal of one sender is no failure of the relay: it may know one site's domain and not another's. Nor is
  the end of a session that has answered a mail, since relays limit the mails of one and the errors in one;
- a message is removed with the last mail that needs it;
- the log and alerts name no recipient.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.mail.delivery import ALERT_AFTER, FIRST_PAUSE, LONGEST_LOOK, LONGEST_PAUSE
from svc_actors.mail.relay import Deferred, Outcome, Rejected, Relay, RelayError, Sent
from svc_actors.mail.settings import MailSettings
from svc_actors.panel.mail import queue
from svc_actors.panel.mail.queue import CHANNEL, ClaimedSiteMail
from svc_actors.panel.mail.spool import Spool
from svc_actors.store import Database

ALERT: Final = "mail of sites"
SWEEP_SECONDS: Final = 600.0
_SESSION: Final = 50
"""Mails per session; relays have a limit of their own."""
_LOOKED_UP: Final = 1000

log = structlog.get_logger(__name__)


class SiteMailDelivery:
    def __init__(self, database: Database, spool: Spool, settings: MailSettings) -> None:
        self._database = database
        self._spool = spool
        self._settings = settings
        self._threads = trio.CapacityLimiter(4)
        self._outcomes: dict[UUID, tuple[UUID, Outcome]] = {}
        self._woken = trio.Event()
        self._answers = 0
        """Of the relay, about mails."""
        self._failures = 0
        self._not_before = 0.0
        self._failing_since: float | None = None
        self._failure = ""
        self._told: str | None = ""
        """The alert's message; at first it is not known."""

    async def run(self) -> None:
        """Deliver until cancelled. Raises what the database raises; a new call resumes where it was."""
        with self._database.announcements.listener(CHANNEL, lambda _: self._woken.set()):
            while True:
                self._woken = trio.Event()
                pause = await self.round()
                with trio.move_on_after(pause):
                    await self._woken.wait()
                # Mail that comes while the relay is away does not have it tried more often.
                await trio.sleep_until(max(self._not_before, trio.current_time()))

    async def round(self) -> float:
        """Deliver what is due; returns the seconds to the next look."""
        await self._store_outcomes()
        await self._remove_unqueued(await queue.fail_expired(self._database))
        while trio.current_time() >= self._not_before and (due := await queue.due(self._database)):
            await self._deliver(due[:_SESSION])
        await self._tell()
        seconds = await queue.seconds_to_next(self._database)
        if seconds is None:
            return LONGEST_LOOK
        # Never 0, because this loop would spin if the database's clock differs from ours.
        return min(max(seconds, self._not_before - trio.current_time(), 0.05), LONGEST_LOOK)

    async def _deliver(self, due: Sequence[UUID]) -> None:
        """Deliver over as many sessions as the relay makes of it. The mail that was under way when one ended is the
        first of the next, in the same attempt; one that ends this session too waits for its own next attempt."""
        left = deque(due)
        claimed: ClaimedSiteMail | None = None
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
                    await self._relay_failed(error, left)
                    return
                log.info("site_mail.session_ended", error=str(error), answers=self._answers - answers)

    async def _relay_failed(self, error: RelayError, left: Collection[UUID]) -> None:
        self._failure = str(error)
        if self._failing_since is None:
            self._failing_since = trio.current_time()
        pause = min(FIRST_PAUSE * 2 ** min(self._failures, 20), LONGEST_PAUSE)
        self._failures += 1
        self._not_before = trio.current_time() + pause * random.uniform(0.8, 1.0)  # noqa: S311
        log.warning("site_mail.relay_failed", error=str(error), pause=round(pause, 1))
        await queue.note_relay_problem(self._database, left, str(error))

    async def _attempt(self, relay: Relay, mail: ClaimedSiteMail) -> None:
        try:
            content = await self._spool.read(mail.message)
        except FileNotFoundError:
            await queue.rejected(self._database, mail.id, "the message is no longer in the spool of this server")
            return
        try:
            outcome = await relay.send(mail.recipient, _signed(mail, content), sender=mail.sender)
        except RelayError as error:
            await queue.deferred(self._database, mail.id, str(error))
            raise
        self._answers += 1
        self._failures = 0
        self._failing_since = None
        self._outcomes[mail.id] = (mail.message, outcome)
        await self._store_outcomes()

    async def _store_outcomes(self) -> None:
        while self._outcomes:
            mail_id, (message, outcome) = next(iter(self._outcomes.items()))
            match outcome:
                case Sent():
                    await queue.sent(self._database, mail_id)
                    log.info("site_mail.sent", mail_id=str(mail_id))
                case Deferred():
                    await queue.deferred(self._database, mail_id, outcome.reason)
                    log.info("site_mail.deferred", mail_id=str(mail_id), code=outcome.code)
                case Rejected():
                    await queue.rejected(self._database, mail_id, outcome.reason)
                    log.info("site_mail.rejected", mail_id=str(mail_id), code=outcome.code)
            del self._outcomes[mail_id]
            if not isinstance(outcome, Deferred):
                await self._remove_unqueued([message])

    async def _remove_unqueued(self, messages: Sequence[UUID]) -> None:
        await _remove_unqueued(self._database, self._spool, messages)

    async def _tell(self) -> None:
        """Open or close the alert about the relay."""
        message = None
        if self._failing_since is not None:
            if trio.current_time() - self._failing_since < ALERT_AFTER:
                return
            message = f"The mail of sites cannot be delivered: {self._failure}"
        if message != self._told:
            await self._database.transact(partial(set_alert, key=ALERT, message=message, severity=Severity.CRITICAL))
            self._told = message


def _signed(mail: ClaimedSiteMail, content: bytes) -> bytes:
    return content if mail.signature is None else mail.signature.encode() + content


async def sweep(database: Database, spool: Spool) -> None:
    """Remove messages without a queued mail: of deleted sites, of mails that were cancelled, of refused ones."""
    found = await spool.old_messages()
    for start in range(0, len(found), _LOOKED_UP):
        await _remove_unqueued(database, spool, found[start : start + _LOOKED_UP])


async def _remove_unqueued(database: Database, spool: Spool, messages: Sequence[UUID]) -> None:
    if messages:
        await spool.remove(await queue.unqueued(database, messages))
