"""WS /api/v1/console/ws/{ticket}: binary RFB for vnc, raw bytes for serial.

A console is open from the moment its ticket was redeemed until the guest's stream ends, the browser goes, or its
standing is lost: the session or token ended, the person suspended, the machine deleted. Silence alone never ends one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit
from uuid import UUID

import prometheus_client
import structlog
import trio
from quart import Response, websocket
from quart_trio import QuartTrio

from svc.controller.machines.consoles import CONSOLE_SOCKET_PATH
from svc.identity.sessions import SESSION_COOKIE
from svc_actors.controller.machines.consoles import ConsoleKind, ConsoleOpen, Grant, Standing, redeem, standing
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Database
from svc_console import closing, frames
from svc_console.closing import Close
from svc_console.relay import relay

STANDING_SECONDS = 2.0
"""How often an open console's standing is looked at, and so how long one outlives it at most."""
UNANSWERED_SECONDS = 30.0
"""How long a console stays open while its standing, or its node's presence, cannot be told."""
OPEN_SECONDS = 15.0
"""How long the node may take to open the stream."""

_log = structlog.get_logger(__name__)
_open_consoles = prometheus_client.Gauge("svc_consoles_open", "Consoles open now.", ["kind"])


class Streams(Protocol):
    """What the relay asks of the node gateway."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def open_stream(
        self, node_id: UUID, operation: Callable[[str], ConsoleOpen], *, timeout: float
    ) -> trio.abc.Stream: ...


class ConsoleServices(Protocol):
    @property
    def database(self) -> Database: ...

    @property
    def gateway(self) -> Streams: ...


@dataclass(frozen=True)
class Statistics:
    """Consoles open now."""

    vnc: int
    serial: int


class Consoles:
    """The open consoles of this process."""

    def __init__(self) -> None:
        self._open: Counter[ConsoleKind] = Counter()

    def statistics(self) -> Statistics:
        return Statistics(vnc=self._open[ConsoleKind.VNC], serial=self._open[ConsoleKind.SERIAL])

    @contextmanager
    def opened(self, kind: ConsoleKind) -> Iterator[None]:
        self._open[kind] += 1
        _open_consoles.labels(kind.value).inc()
        try:
            yield
        finally:
            self._open[kind] -= 1
            _open_consoles.labels(kind.value).dec()


def add_console_routes(
    app: QuartTrio,
    services: ConsoleServices,
    *,
    shutdown: trio.Event | None = None,
    standing_seconds: float = STANDING_SECONDS,
) -> Consoles:
    """Serve consoles on `app`, until `shutdown` is set. Returns the count of those open."""
    frames.install()
    consoles = Consoles()
    service = _Service(services, consoles, trio.Event() if shutdown is None else shutdown, standing_seconds)

    @app.websocket(CONSOLE_SOCKET_PATH + "<ticket>")
    async def console(ticket: str) -> Response | None:
        origin = websocket.headers.get("Origin")
        if origin is not None and not _same_origin(origin, websocket.headers.get("Host", "")):
            return Response("A console opens from this service's own pages only.\n", status=403)
        await websocket.accept()
        cookie = websocket.cookies.get(SESSION_COOKIE)
        close = await service.serve(ticket, cookie)
        await websocket.close(close.code, close.reason)
        return None

    return consoles


@dataclass(frozen=True)
class _Service:
    services: ConsoleServices
    consoles: Consoles
    shutdown: trio.Event
    standing_seconds: float

    async def serve(self, ticket: str, cookie: str | None) -> Close:
        database, gateway = self.services.database, self.services.gateway
        try:
            grant = await redeem(database, ticket, session_cookie=cookie)
            if grant is None:
                return closing.TICKET_REFUSED
            if (now := await standing(database, grant)) is not Standing.GOOD:
                return closing.STANDINGS[now]
            node_id: UUID = await database.fetchval("SELECT node_id FROM vms WHERE id = $1", grant.vm_id)
            guest = await gateway.open_stream(
                node_id,
                lambda token: ConsoleOpen(vm_id=grant.vm_id, kind=grant.kind, stream_token=token),
                timeout=OPEN_SECONDS,
            )
        except ServiceError as error:
            _log.info("console not opened", code=error.code.value, error=error.message)
            guest_is_off = error.code in (ErrorCode.NOT_FOUND, ErrorCode.NOT_READY)
            return closing.GUEST_ENDED if guest_is_off else closing.NODE_UNAVAILABLE
        with self.consoles.opened(grant.kind):
            return await self._join(grant, node_id, guest)

    async def _join(self, grant: Grant, node_id: UUID, guest: trio.abc.Stream) -> Close:
        outcome: list[Close] = []
        async with trio.open_nursery() as nursery:

            async def end_after(reason: Callable[[], Awaitable[Close]]) -> None:
                outcome.append(await reason())
                nursery.cancel_scope.cancel()
                # A browser that does not read holds the relay in a send that cannot be cancelled: let the guest go now.
                await trio.aclose_forcefully(guest)

            nursery.start_soon(end_after, partial(self._standing_lost, grant, node_id))
            nursery.start_soon(end_after, self._stopping)
            outcome.append(closing.ENDINGS[await relay(websocket, guest)])
            nursery.cancel_scope.cancel()
        return outcome[0]

    async def _stopping(self) -> Close:
        await self.shutdown.wait()
        return closing.STOPPING

    async def _standing_lost(self, grant: Grant, node_id: UUID) -> Close:
        certain = trio.current_time()
        while True:
            await trio.sleep(self.standing_seconds)
            try:
                now = await standing(self.services.database, grant)
            except ServiceError as error:
                _log.warning("a console's standing could not be told", error=error.message)
            else:
                if now is not Standing.GOOD:
                    return closing.STANDINGS[now]
                if self.services.gateway.is_online(node_id):
                    certain = trio.current_time()
            if trio.current_time() - certain > UNANSWERED_SECONDS:
                return closing.NODE_UNAVAILABLE


def _same_origin(origin: str, host: str) -> bool:
    """Whether `origin` is the page of the server that was asked, by the name it was asked under (RFC 6454)."""
    parts = urlsplit(origin)
    return parts.scheme == "https" and parts.netloc.lower() == host.lower()
