"""Gives the SFTP server the current logins: after every change, and whenever a site's status changes.

Invariant: one task at a time reads the records and updates the server, so the last update uses records that were read
after the last change. A failed update is repeated with the next change and every half minute.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_actors.panel.sftp.records import open_logins
from svc_actors.panel.sites.following import repeat_on_site_changes
from svc_actors.store import Database, EventLog
from svc_common.errors import unavailable
from svc_webhost.sftp import SftpError, SftpServing

LOOK_SECONDS: Final = 30.0


class SftpAccess:
    def __init__(self, database: Database, events: EventLog, server: SftpServing) -> None:
        self._database = database
        self._events = events
        self.server = server
        self._one = trio.Lock()

    async def agree(self, *ended: str) -> None:
        """Make the server accept exactly the recorded logins, and end the sessions of all other logins and of the
        logins `ended`. Raises `unavailable`."""
        async with self._one:
            logins = await open_logins(self._database)
            try:
                await self.server.agree(logins, ended)
            except SftpError as error:
                raise unavailable(
                    f"The change is recorded, but the SFTP server has not applied it yet: {error}",
                    hint="It is retried every 30 s.",
                ) from error

    async def run(self) -> None:
        """Run until cancelled. Raises what `agree` raises; the caller starts it again."""
        await repeat_on_site_changes(self._events, LOOK_SECONDS, self.agree)
