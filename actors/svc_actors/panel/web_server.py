"""The web server for the rest of the panel: callers hand over sites, which are served when the call returns.

With a thousand sites, a new generation of the configuration takes a second or two, for one change nearly as long as for
a hundred. So one loop, the only writer, merges changes that come close together; an actor, which handles one message
after another, could not do that.

Invariants:
- callers always get an answer, about their own sites only: served, refused, or nothing was done;
- when the loop starts, it makes nginx serve what the records say; if nginx already does, nothing is reloaded;
- a stopped nginx is started again, even if nobody changes anything;
- a site that was left out to keep the others served has an alert until it is served again.

Why: docs/decisions/0041-web-server-generations.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from svc_actors.alerts import Severity, close_alerts, raise_alert
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError, conflict, unavailable
from svc_webhost.nginx import NginxError, SiteServer, WebServing

MERGE_SECONDS: Final = 0.15
"""How long a change waits for further ones: too short for callers to notice, long enough to merge a burst."""
LOGS_SECONDS: Final = 600.0
"""The interval in which logs are rotated if necessary. At 1,000 requests a second a log grows by 90 MB in this time."""
LOOK_SECONDS: Final = 30.0
"""The longest time until a stopped nginx is noticed. A look only asks nginx's status socket."""
_ALERTS: Final = "web_server:site:"
_DEFECT: Final = "Changes do not reach the web server: the panel itself has failed. Its log has the cause."
_TRY_AGAIN: Final = "Sites are served as before. Try again; repeating the change is safe."

DesiredSites = Callable[[], Awaitable[tuple[Iterable[SiteServer], Mapping[int, str]]]]
"""Returns all sites as they should be served by the records, and, by number, the reason for each site that cannot be
served."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.web_server")


@dataclass(eq=False)
class _Asked:
    servers: Mapping[int, SiteServer | None]
    done: trio.Event = field(default_factory=trio.Event)
    error: ServiceError | None = None
    by_records: bool = False
    """Whether to serve all sites by their records first."""


@dataclass(frozen=True)
class _Outcome:
    """Why nothing was changed, or why some sites are not served as requested."""

    failure: str | None
    refused: Mapping[int, str] = field(default_factory=dict)

    def of(self, servers: Mapping[int, SiteServer | None]) -> ServiceError | None:
        """The error for a caller that requested these changes."""
        if self.failure is not None:
            return unavailable(self.failure, hint=_TRY_AGAIN)
        told = [
            f"{number if server is None else server.domain}: {self.refused[number]}"
            for number, server in servers.items()
            if number in self.refused
        ]
        if not told:
            return None
        return conflict(
            f"The web server rejected the configuration of {'; '.join(told)}.",
            hint="The site is served as before; other sites are not affected.",
        )


class WebServer:
    def __init__(self, database: Database, serving: WebServing, desired: DesiredSites) -> None:
        self._database = database
        self._serving = serving
        self._wanted = desired
        self._asked: list[_Asked] = []
        self._woken = trio.Event()
        self.serving_began = trio.Event()
        """Set once nginx answers for the first time since this core started."""
        self._down: str | None = None
        self._left_out: dict[int, str] = {}

    async def change(self, servers: Mapping[int, SiteServer | None]) -> None:
        """Serve these sites, by number, as given; None stops serving one. May be repeated.

        Raises `conflict` if nginx refuses one of the sites, which is then served as before, and `unavailable` if
        nothing could be changed. A change that was started is finished even if the caller is cancelled."""
        await self._ask(_Asked(servers))

    async def serve_records(self) -> None:
        """Serve all sites by their records, as at the start, since what is common to them has changed. Raises
        `unavailable` if nothing could be changed."""
        await self._ask(_Asked({}, by_records=True))

    async def _ask(self, asked: _Asked) -> None:
        if self._down is not None:
            raise unavailable(self._down, hint=_TRY_AGAIN)
        self._asked.append(asked)
        self._woken.set()
        try:
            await asked.done.wait()
        finally:
            if asked in self._asked:
                self._asked.remove(asked)
        if asked.error is not None:
            raise asked.error

    async def run(self) -> None:
        """Serve until cancelled. Raises `NginxError` if nginx cannot be started, and any other failure; the caller runs
        it again. Until then `change` fails at once."""
        try:
            await self._begin()
            self._down = None
            self.serving_began.set()
            await self._serve_changes()
        # Callers must not wait for a server that does not run. The error is raised again below.
        except Exception as error:
            self._down = str(error) if isinstance(error, NginxError) else _DEFECT
            for asked in self._take():
                asked.error = unavailable(self._down, hint=_TRY_AGAIN)
                asked.done.set()
            raise

    async def _serve_changes(self) -> None:
        rotate_at = trio.current_time() + LOGS_SECONDS
        while True:
            with trio.move_on_at(min(rotate_at, trio.current_time() + LOOK_SECONDS)):
                await self._woken.wait()
                await trio.sleep(MERGE_SECONDS)
            if trio.current_time() >= rotate_at:
                await self._rotate_logs()
                rotate_at = trio.current_time() + LOGS_SECONDS
            if batch := self._take():
                await self._serve(batch)
            else:
                await self._note({}, await self._serving.apply({}))

    async def _rotate_logs(self) -> None:
        try:
            await self._serving.rotate_logs()
        except (NginxError, OSError) as error:
            log.warning("web_server.logs_not_rotated", reason=str(error))

    async def _begin(self) -> None:
        servers, unservable = await self._wanted()
        self._left_out = {**unservable, **await self._serving.start(servers)}
        for number, words in self._left_out.items():
            log.error("web_server.site_refused", site=number, reason=words)
        await self._database.transact(self._write_alerts)

    def _take(self) -> list[_Asked]:
        taken, self._asked = self._asked, []
        self._woken = trio.Event()
        return taken

    async def _serve(self, batch: list[_Asked]) -> None:
        # If two changes are about the same site, the later one wins, and both callers get its result.
        changes = {number: server for asked in batch for number, server in asked.servers.items()}
        # The outcome after a cancellation or a defect, so that no caller waits for ever.
        outcome = _Outcome("The change of the web server was interrupted.")
        try:
            outcome = await self._apply(changes, by_records=any(asked.by_records for asked in batch))
        finally:
            for asked in batch:
                asked.error = outcome.of(asked.servers)
                asked.done.set()
        await self._note(changes, outcome.refused)

    async def _apply(self, changes: Mapping[int, SiteServer | None], *, by_records: bool) -> _Outcome:
        try:
            if by_records:
                await self._begin()
            return _Outcome(None, await self._serving.apply(changes))
        except NginxError as error:
            log.error("web_server.not_changed", sites=len(changes), reason=str(error))
            return _Outcome(str(error))

    async def _note(self, changes: Mapping[int, SiteServer | None], refused: Mapping[int, str]) -> None:
        left_out = {number: words for number, words in self._left_out.items() if number not in changes}
        for number, words in refused.items():
            if number not in changes:
                log.error("web_server.site_left_out", site=number, reason=words)
                left_out[number] = words
        if left_out != self._left_out:
            self._left_out = left_out
            await self._database.transact(self._write_alerts)

    async def _write_alerts(self, tx: Transaction) -> None:
        for number, words in self._left_out.items():
            message = f"The web server rejected the configuration of site {number}: {words}"
            await raise_alert(tx, f"{_ALERTS}{number}", message, severity=Severity.CRITICAL)
        await close_alerts(tx, _ALERTS, keep=[f"{_ALERTS}{number}" for number in self._left_out])
