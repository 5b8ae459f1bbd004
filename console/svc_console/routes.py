"""WS /api/v1/console/ws/{ticket}: binary RFB for vnc, raw bytes for serial.

A console is open from the moment its ticket is redeemed until the guest's stream ends, the browser disconnects, or the
person loses the right to it: their session or token ends, they are suspended, or the machine is deleted. An idle
console is never closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import prometheus_client
import structlog
import trio
from quart import Response, websocket
from quart_trio import QuartTrio

from svc_common.errors import ErrorCode, ServiceError
from svc_console import frames
from svc_console.relay import Ending, relay
from svc_console.source import Console, ConsoleSource, Refusal

CONSOLE_SOCKET_PATH = "/api/v1/console/ws/"

STANDING_SECONDS = 2.0
"""How often the right to an open console is checked. A console stays open at most this long after the right is lost."""
UNANSWERED_SECONDS = 30.0
"""How long a console stays open while it cannot be checked whether the person still has the right, or whether the node
is online."""
OPEN_SECONDS = 15.0
"""How long the node may take to open the stream."""
MOST_OF_ONE = 32
"""The most consoles of one person, over all their sessions and tokens. Each takes one of the 256 streams of its node,
and is checked every two seconds."""

_log = structlog.get_logger(__name__)
_open_consoles = prometheus_client.Gauge("svc_consoles_open", "Consoles open now.", ["kind"])


# The close codes tell the page or program at the other end why the websocket ended and what to do. Codes 4000 to 4999
# are left to applications (RFC 6455, section 7.4.2); the last three digits follow HTTP's.
@dataclass(frozen=True)
class Close:
    """`reason` is at most 123 bytes, the most that a close frame carries."""

    code: int
    reason: str


STOPPING = Close(1001, "The service is stopping: try again with a new ticket.")
NOT_BINARY = Close(1003, "A console takes binary messages only.")
TICKET_REFUSED = Close(4401, "This ticket was used already, has expired or is not yours: request a new one.")
SIGNED_OUT = Close(4403, "The session or token this console was opened with has ended.")
MACHINE_GONE = Close(4404, "The machine was deleted.")
GUEST_ENDED = Close(4409, "The machine's console has ended: it was stopped or restarted.")
TOO_MANY = Close(4429, "This account has the maximum number of consoles open: close one of them.")
NODE_UNAVAILABLE = Close(4503, "The machine's node cannot be reached: try again with a new ticket.")
INPUT_STALLED = Close(4504, "The machine took no input for a minute: open the console again with a new ticket.")

ENDINGS: dict[Ending, Close] = {
    Ending.GUEST_ENDED: GUEST_ENDED,
    Ending.INPUT_STALLED: INPUT_STALLED,
    Ending.NOT_BINARY: NOT_BINARY,
}

REFUSALS: dict[Refusal, Close] = {
    Refusal.SIGNED_OUT: SIGNED_OUT,
    Refusal.MACHINE_GONE: MACHINE_GONE,
    Refusal.MACHINE_STOPPED: GUEST_ENDED,
}


@dataclass(frozen=True)
class Statistics:
    """Consoles open now."""

    vnc: int
    serial: int


class Consoles:
    """The open consoles of this process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._of: Counter[UUID] = Counter()

    def statistics(self) -> Statistics:
        return Statistics(vnc=self._open["vnc"], serial=self._open["serial"])

    @contextmanager
    def place(self, holder: UUID) -> Iterator[bool]:
        """Whether the person may open one more console. If so, it counts as open for the length of the block."""
        if self._of[holder] >= MOST_OF_ONE:
            yield False
            return
        self._of[holder] += 1
        try:
            yield True
        finally:
            self._of[holder] -= 1
            if not self._of[holder]:
                del self._of[holder]

    @contextmanager
    def opened(self, kind: str) -> Iterator[None]:
        self._open[kind] += 1
        _open_consoles.labels(kind).inc()
        try:
            yield
        finally:
            self._open[kind] -= 1
            _open_consoles.labels(kind).dec()


def add_console_routes(
    app: QuartTrio,
    source: ConsoleSource,
    *,
    session_cookie: str,
    origins: Collection[str],
    shutdown: trio.Event | None = None,
    standing_seconds: float = STANDING_SECONDS,
) -> Consoles:
    """Serve consoles on `app`, to pages of `origins`, until `shutdown` is set. Returns the open consoles."""
    frames.install()
    own = frozenset(origin.lower() for origin in origins)
    consoles = Consoles()
    service = _Service(source, consoles, trio.Event() if shutdown is None else shutdown, standing_seconds)

    @app.websocket(CONSOLE_SOCKET_PATH + "<ticket>")
    async def console(ticket: str) -> Response | None:
        origin = websocket.headers.get("Origin")
        if origin is not None and origin.lower() not in own:
            return Response("A console opens from this service's own pages only.\n", status=403)
        await websocket.accept()
        cookie = websocket.cookies.get(session_cookie)
        close = await service.serve(ticket, cookie)
        await websocket.close(close.code, close.reason)
        return None

    return consoles


@dataclass(frozen=True)
class _Service:
    source: ConsoleSource
    consoles: Consoles
    shutdown: trio.Event
    standing_seconds: float

    async def serve(self, ticket: str, cookie: str | None) -> Close:
        try:
            console = await self.source.redeem(ticket, session_cookie=cookie)
        except ServiceError as error:
            return _unavailable(error)
        if console is None:
            return TICKET_REFUSED
        with self.consoles.place(console.holder) as granted:
            return await self._open(console) if granted else TOO_MANY

    async def _open(self, console: Console) -> Close:
        try:
            if (refusal := await console.refusal()) is not None:
                return REFUSALS[refusal]
            guest = await console.open(timeout=OPEN_SECONDS)
        except ServiceError as error:
            return _unavailable(error)
        with self.consoles.opened(console.kind):
            return await self._join(console, guest)

    async def _join(self, console: Console, guest: trio.abc.Stream) -> Close:
        outcome: list[Close] = []
        async with trio.open_nursery() as nursery:

            async def end_after(reason: Callable[[], Awaitable[Close]]) -> None:
                outcome.append(await reason())
                nursery.cancel_scope.cancel()
                # A browser that does not read blocks the relay in a send that cannot be cancelled: close the guest's
                # stream now.
                await trio.aclose_forcefully(guest)

            nursery.start_soon(end_after, partial(self._refused, console))
            nursery.start_soon(end_after, self._stopping)
            outcome.append(ENDINGS[await relay(websocket, guest)])
            nursery.cancel_scope.cancel()
        return outcome[0]

    async def _stopping(self) -> Close:
        await self.shutdown.wait()
        return STOPPING

    async def _refused(self, console: Console) -> Close:
        certain = trio.current_time()
        while True:
            await trio.sleep(self.standing_seconds)
            try:
                refusal = await console.refusal()
            except ServiceError as error:
                _log.warning("console.access_not_checked", error=error.message)
            else:
                if refusal is not None:
                    return REFUSALS[refusal]
                if console.reachable:
                    certain = trio.current_time()
            if trio.current_time() - certain > UNANSWERED_SECONDS:
                return NODE_UNAVAILABLE


def _unavailable(error: ServiceError) -> Close:
    _log.info("console.refused", code=error.code.value, error=error.message)
    guest_is_off = error.code in (ErrorCode.NOT_FOUND, ErrorCode.NOT_READY)
    return GUEST_ENDED if guest_is_off else NODE_UNAVAILABLE
