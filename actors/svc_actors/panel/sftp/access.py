"""The SFTP server is told who may sign in: at once after a change, and whenever a site's status changes.

Invariant: what the server was told last is what the records said at some moment after the change that it was told for:
one at a time reads them and tells. What could not be told is told again, by the next change and every half minute.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_actors.errors import unavailable
from svc_actors.host.sftp import SftpError, SftpServing
from svc_actors.panel.sftp.records import open_logins
from svc_actors.panel.sites.following import whenever_sites_change
from svc_actors.store import Database, EventLog

LOOK_SECONDS: Final = 30.0


class SftpAccess:
    def __init__(self, database: Database, events: EventLog, server: SftpServing) -> None:
        self._database = database
        self._events = events
        self.server = server
        self._one = trio.Lock()

    async def agree(self, *ended: str) -> None:
        """The server lets in those of the records, and nobody else; sessions of others, and of the logins `ended`, are
        over. Raises `unavailable`."""
        async with self._one:
            logins = await open_logins(self._database)
            try:
                await self.server.agree(logins, ended)
            except SftpError as error:
                raise unavailable(
                    f"The change is recorded, but the SFTP server has not taken it: {error}",
                    hint="It is retried every 30 s.",
                ) from error

    async def run(self) -> None:
        """Until cancelled. Raises what `agree` does, and is to be begun again then."""
        await whenever_sites_change(self._events, LOOK_SECONDS, self.agree)
