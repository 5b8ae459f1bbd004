"""Hypercorn's connections: limited in number, isolated from each other's failures, and strict about the RFCs' HTTP.

- Their number is limited in all and for one address (`svc_actors.admission`); a connection that waits for its client's
  next request makes room for another.
- An unforeseen error in a connection is logged, and ends that connection at most.
- If a client has closed its side, the connection is closed once its requests have ended: no further one can come.
- Over HTTP/2, data that a client sent before it learned that the server had ended the stream (a websocket's answer to
  our close, the rest of a refused upload) is ordinary (RFC 9113, section 5.1), but Hypercorn 0.18 raises an error for
  it. Here this data counts for the connection's flow control and is dropped.
- A task takes frames out of HTTP/2's state only when it can send them. If Hypercorn's sender were cancelled between
  taking a header block and sending it, the client could decode no later one (RFC 9113, section 4.3).
- Over TLS a change to HTTP/2 in mid-connection is refused, since ALPN has chosen (RFC 9113, section 3.1); so is a
  request with both Content-Length and Transfer-Encoding, because two servers may disagree about where its body ends
  (RFC 9112, 6.1).

Why: docs/decisions/0005-listeners-and-held-ports.md.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import h2.errors
import h2.events
import h11
import hypercorn.protocol
import hypercorn.trio.run
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import EndBody
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import H11SendableEvent

from svc_actors.admission import Admission, ConnectionSlot

FIRST_REQUEST_SECONDS: Final = 1.0
"""When the server stops, it waits this long for the first request of a client that has just connected, and answers
it."""

FLUSH_SECONDS: Final = 30.0
"""Seconds to send the rest of an answer: longer than the kernel waits for a client that reads nothing
(`server.UNREAD_DEADLINE`)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc_http.connections")


class BoundedConfig(Config):
    """A listener's configuration, which its connections share, with the limit on them."""

    admission: Admission

    def admitted_as(self, connected: socket.socket) -> str | None:
        """The key under which the connections of one client are counted together; None for a refused client."""
        return str(connected.getpeername()[0])


class ContainedConnection(TCPServer):
    """One accepted connection. The base closes its stream however it ends."""

    _seat: ConnectionSlot | None = None
    _asked = False
    _heard_out = False

    async def run(self) -> None:
        try:
            if isinstance(self.config, BoundedConfig):
                await self._admitted(self.config)
            else:
                await super().run()
        except Exception:
            # A defect in one connection must not end the server, which runs all connections in one nursery.
            log.exception("http.connection_crashed")

    async def _admitted(self, config: BoundedConfig) -> None:
        transport = getattr(self.stream, "transport_stream", self.stream)
        scope = trio.CancelScope()
        try:
            client = config.admitted_as(transport.socket)
        except OSError:  # gone already
            client = ""
        if client is not None:
            self._seat = config.admission.enter(client, scope.cancel)
        try:
            if self._seat is None:
                return
            with scope:
                await super().run()
        finally:
            if self._seat is not None:
                self._seat.leave()
            # Closed without TLS's close_notify: the client may not read it.
            await trio.aclose_forcefully(transport)

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._asked = self._asked or not event.idle
            if self._seat is not None:
                if event.idle:
                    self._seat.idle()
                else:
                    self._seat.busy()
            if event.idle and self._heard_out:
                return
        await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._heard_out = True
        await self.idle_task.stop()

    async def _idle_timeout(self) -> None:
        with trio.move_on_after(self.config.keep_alive_timeout):
            await self.context.terminated.wait()
            if not self._asked:
                # Cancelled by the next request; without one, the connection is closed.
                await trio.sleep(FIRST_REQUEST_SECONDS)
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()


class PatientH2Protocol(H2Protocol):
    """HTTP/2 that tolerates data for a stream that has ended on this side. While the server stops, the first request of
    a connection is answered, and any later request is refused in a way that tells the client to send it again (RFC
    9113, section 8.7)."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent = trio.Event()
        self._flushing = trio.Lock()

    async def _flush(self) -> None:
        async with self._flushing:
            with trio.move_on_after(FLUSH_SECONDS, shield=True):
                await super()._flush()

    async def handle(self, event: Event) -> None:
        await super().handle(event)
        if isinstance(event, Closed):
            self._sent.set()

    async def stream_send(self, event: StreamEvent) -> None:
        await super().stream_send(event)
        if isinstance(event, EndBody):
            # Hypercorn considers an answer sent once its last byte is sent, and a stopping server then closes the
            # connection. Here it waits until the stream has ended as well.
            while event.stream_id in self.stream_buffers and not self.closed:
                await self._sent.wait()

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        sent, self._sent = self._sent, trio.Event()
        sent.set()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
            elif isinstance(event, h2.events.RequestReceived) and self.context.terminated.is_set():
                if self.keep_alive_requests:
                    self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
                else:
                    await self._create_stream(event)
                    await self.send(Updated(idle=False))
                await self._flush()
            else:
                await super()._handle_events([event])


class StrictH11Protocol(H11Protocol):
    """HTTP/1.1 that answers 400 to what an honest client does not send, and ends the connection.

    The head of an answer of known length is sent together with its body: one TLS record, one system call and one
    wake-up of the client instead of two or three. A stream's head is sent at once, since its first event may take
    long."""

    _head = b""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head += data or b""
        elif self._head or data:
            data, self._head = self._head + (data or b""), b""
            await self.send(RawData(data=data))

    async def _check_protocol(self, event: h11.Request) -> None:
        if not self.ssl:
            await super()._check_protocol(event)

    async def _create_stream(self, request: h11.Request) -> None:
        if self.ssl and _is_devious(request):
            await self._send_error_response(400)
            await self.send(Closed())
        else:
            await super()._create_stream(request)


def _is_devious(request: h11.Request) -> bool:
    names = {name for name, _ in request.headers}
    upgrades = [value.lower() for name, value in request.headers if name == b"upgrade"]
    return (
        {b"content-length", b"transfer-encoding"} <= names
        or any(b"h2c" in value for value in upgrades)
        or request.method == b"PRI"
    )


def install() -> None:
    """Have Hypercorn use these for every connection of the process. Repeating it changes nothing."""
    hypercorn.trio.run.TCPServer = ContainedConnection  # type: ignore[attr-defined]
    hypercorn.protocol.H2Protocol = PatientH2Protocol  # type: ignore[attr-defined, assignment]
    hypercorn.protocol.H11Protocol = StrictH11Protocol  # type: ignore[attr-defined]
