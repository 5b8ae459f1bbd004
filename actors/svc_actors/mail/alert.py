"""The alert that mail cannot be delivered: it opens after `ALERT_AFTER` seconds, and closes at the relay's next answer
that is not a reason for the alert. An empty queue does not close the alert, because the mail may have been given up.

A relay that fails stops all mail. A temporary refusal may concern only one recipient's server. It is a reason for the
alert about the service's own mail, of which there is little, but not about the mail of sites, where some recipient
always has a full mailbox.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.mail.relay import Deferred, Outcome, RelayError
from svc_actors.store import Database

OWN_MAIL: Final = "mail"
SITE_MAIL: Final = "mail of sites"
ALERT_AFTER: Final = 900.0


class DeliveryAlert:
    def __init__(self, database: Database, key: str, subject: str, *, counts_deferrals: bool) -> None:
        self._database = database
        self._key = key
        self._subject = subject
        self._counts_deferrals = counts_deferrals
        self._failing_since: float | None = None
        self._failure: RelayError | Deferred | None = None
        self._over = False
        """Whether an alert may be open, perhaps from an earlier process, and must be closed."""

    @classmethod
    def of_own_mail(cls, database: Database) -> DeliveryAlert:
        return cls(database, OWN_MAIL, "Mail", counts_deferrals=True)

    @classmethod
    def of_site_mail(cls, database: Database) -> DeliveryAlert:
        return cls(database, SITE_MAIL, "The mail of sites", counts_deferrals=False)

    def relay_failed(self, error: RelayError) -> None:
        self._failing(error)

    def answered(self, outcome: Outcome) -> None:
        """Note that the relay has answered a mail with this outcome."""
        if isinstance(outcome, Deferred) and self._counts_deferrals:
            self._failing(outcome)
        else:
            self._failing_since, self._failure, self._over = None, None, True

    def _failing(self, failure: RelayError | Deferred) -> None:
        self._failure = failure
        if self._failing_since is None:
            self._failing_since = trio.current_time()

    async def tell(self) -> None:
        if self._failing_since is None:
            if self._over:
                await self._database.transact(partial(set_alert, key=self._key, message=None))
                self._over = False
        elif trio.current_time() - self._failing_since >= ALERT_AFTER:
            severity, why = Severity.CRITICAL, str(self._failure)
            if isinstance(self._failure, Deferred):
                severity, why = Severity.WARNING, f"the relay answers {self._failure.code} (svc mail list has the rest)"
            message = f"{self._subject} cannot be delivered: {why}"
            await self._database.transact(partial(set_alert, key=self._key, message=message, severity=severity))
