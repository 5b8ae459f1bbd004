"""The alert that mail cannot be delivered: it opens after `ALERT_AFTER` seconds. An empty queue does not close the
alert, because the mail may have been given up.

A relay that fails stops all mail. A temporary refusal may concern only one recipient's server. So the alert about the
mail of sites, where some recipient always has a full mailbox, is about the relay, and closes with any answer of it. The
alert about the service's own mail, of which there is little, closes with the next delivery.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.mail.relay import Deferred, Outcome, RelayError, Sent
from svc_actors.store import Database

OWN_MAIL: Final = "mail"
SITE_MAIL: Final = "mail of sites"
ALERT_AFTER: Final = 900.0


class DeliveryAlert:
    def __init__(self, database: Database, key: str, subject: str, *, until_delivery: bool) -> None:
        self._database = database
        self._key = key
        self._subject = subject
        self._until_delivery = until_delivery
        self._failing_since: float | None = None
        self._failure: RelayError | Deferred | None = None
        self._over = False
        """Whether an alert may be open, perhaps from an earlier process, and must be closed."""
        self._told = ""
        """The message of the alert that this process has opened."""

    @classmethod
    def of_own_mail(cls, database: Database) -> DeliveryAlert:
        return cls(database, OWN_MAIL, "Mail", until_delivery=True)

    @classmethod
    def of_site_mail(cls, database: Database) -> DeliveryAlert:
        return cls(database, SITE_MAIL, "The mail of sites", until_delivery=False)

    def relay_failed(self, error: RelayError) -> None:
        self._failing(error)

    def answered(self, outcome: Outcome) -> None:
        """Note that the relay has answered a mail with this outcome."""
        if isinstance(outcome, Sent) or not self._until_delivery:
            self._failing_since, self._failure, self._over = None, None, True
        elif isinstance(outcome, Deferred):
            self._failing(outcome)
        elif isinstance(self._failure, RelayError):
            self._failing_since, self._failure = None, None

    def _failing(self, failure: RelayError | Deferred) -> None:
        self._failure = failure
        if self._failing_since is None:
            self._failing_since = trio.current_time()

    async def tell(self) -> None:
        """Open or close the alert, if that is due."""
        if self._failing_since is None:
            if self._over:
                await self._database.transact(partial(set_alert, key=self._key, message=None))
                self._over, self._told = False, ""
        elif trio.current_time() - self._failing_since >= ALERT_AFTER:
            severity, why = Severity.CRITICAL, str(self._failure)
            if isinstance(self._failure, Deferred):
                severity, why = Severity.WARNING, f"the relay answers {self._failure.code} (svc mail list has the rest)"
            message = f"{self._subject} cannot be delivered: {why}"
            if message != self._told:
                await self._database.transact(partial(set_alert, key=self._key, message=message, severity=severity))
                self._told = message
