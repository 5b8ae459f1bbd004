"""Readers of server-sent events over HTTP/1.1 and h2, down at the socket, so that a test can vanish or stop reading."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h2.connection
import h2.events
import h11
import trio

from tests.support.example_service import Served

TOKEN = "customer,read"


class Reader:
    """An open stream. `frames()` yields what arrives, cut at the blank lines."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._buffer = b""
        self.received = 0
        """How many pieces the body came in."""

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            while b"\n\n" not in self._buffer:
                data = await self._more()
                if not data:
                    return
                self._buffer += data
                self.received += 1
            frame, _, self._buffer = self._buffer.partition(b"\n\n")
            yield frame

    async def next_event(self) -> dict[str, str]:
        async for frame in self.frames():
            fields = dict(line.split(": ", 1) for line in frame.decode().splitlines() if not line.startswith(":"))
            if "event" in fields:
                return fields
        raise EOFError

    async def ended(self) -> bool:
        async for _ in self.frames():
            pass
        return True

    def vanish(self) -> None:
        """Go without a word: the socket is reset."""
        self._stream.transport_stream.socket.setsockopt(
            trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        self._stream.transport_stream.socket.close()

    async def _more(self) -> bytes:
        """What else of the body arrived; nothing at its end."""
        raise NotImplementedError

    async def _received(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(65536))
        except trio.BrokenResourceError:
            return b""


class H1Reader(Reader):
    def __init__(self, stream: trio.SSLStream[trio.SocketStream], connection: h11.Connection) -> None:
        super().__init__(stream)
        self._connection = connection

    async def _more(self) -> bytes:
        while True:
            event = self._connection.next_event()
            if event is h11.NEED_DATA:
                self._connection.receive_data(await self._received())
            elif isinstance(event, h11.Response):
                assert (event.status_code, dict(event.headers)[b"content-type"]) == (200, b"text/event-stream")
            elif isinstance(event, h11.Data):
                return bytes(event.data)
            else:
                return b""


class H2Reader(Reader):
    def __init__(self, stream: trio.SSLStream[trio.SocketStream], connection: h2.connection.H2Connection) -> None:
        super().__init__(stream)
        self._connection = connection

    async def _more(self) -> bytes:
        data = b""
        while not data:
            received = await self._received()
            if not received:
                return b""
            for event in self._connection.receive_data(received):
                if isinstance(event, h2.events.DataReceived):
                    data += event.data or b""
                    self._connection.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 1)
                elif isinstance(event, h2.events.StreamEnded | h2.events.ConnectionTerminated):
                    return data
            await self._stream.send_all(self._connection.data_to_send())
        return data


@asynccontextmanager
async def reading(
    server: Served,
    version: str,
    *,
    after: int | None = None,
    receive_buffer: int | None = None,
    token: str = TOKEN,
) -> AsyncIterator[Reader]:
    """An event stream opened by a client that speaks `version` (`http/1.1` or `h2`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([version])
    raw = trio.socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
    await raw.connect(("127.0.0.1", server.port))
    stream = trio.SSLStream(trio.SocketStream(raw), context, server_hostname="localhost")
    await stream.do_handshake()
    assert stream.selected_alpn_protocol() == version
    headers = [("authorization", f"Bearer {token}")]
    if after is not None:
        headers.append(("last-event-id", str(after)))
    try:
        if version == "h2":
            yield await _open_h2(stream, headers)
        else:
            yield await _open_h1(stream, headers)
    finally:
        await trio.aclose_forcefully(stream)


async def _open_h1(stream: trio.SSLStream[trio.SocketStream], headers: list[tuple[str, str]]) -> Reader:
    connection = h11.Connection(our_role=h11.CLIENT)
    request = h11.Request(method="GET", target="/api/v1/stream", headers=[("host", "localhost"), *headers])
    await stream.send_all((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
    return H1Reader(stream, connection)


async def _open_h2(stream: trio.SSLStream[trio.SocketStream], headers: list[tuple[str, str]]) -> Reader:
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    pseudo = [(":method", "GET"), (":path", "/api/v1/stream"), (":scheme", "https"), (":authority", "localhost")]
    connection.send_headers(1, [*pseudo, *headers], end_stream=True)
    await stream.send_all(connection.data_to_send())
    return H2Reader(stream, connection)
