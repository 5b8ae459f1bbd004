"""One connection to the controller's gateway: dial, send `Hello`, then exchange frames until the connection ends.

Invariants:

- a connection counts as established once `Welcome` has arrived; everything before that has a deadline;
- the connection is considered dead if a ping is not answered within three heartbeats, even if TCP reports no error;
- an invalid frame ends the connection, and the log says which frame was invalid;
- the protocol's version is agreed on before the hello; if the controller speaks none of the agent's versions, the
  connection ends with a reason that says so.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

import structlog
import trio
from pydantic import ValidationError
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)

from svc_nodeagent.config import Enrolment, Identity
from svc_nodeagent.dispatch import Outbox
from svc_nodeagent.host import Host, HostError
from svc_nodeagent.protocol import (
    AGENT_PATH,
    DOWN,
    MAX_FRAME_BYTES,
    MOST_TEXT,
    Capacity,
    DownFrame,
    Heartbeat,
    Hello,
    Versions,
    Welcome,
    encode,
    offered_by,
)
from svc_nodeagent.version import agent_version
from svc_nodeagent.wrapped_stream import WrappedStream

HANDSHAKE_SECONDS = 15.0
HEARTBEATS_UNTIL_DEAD = 3
_RELAYED_CLOSING_SECONDS = 0.5
log = structlog.get_logger(__name__)


class NotConnected(Exception):  # noqa: N818 - named for what it says
    """The connection could not be made, or has ended; the text is for the log."""


async def dial(enrolment: Enrolment, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    """A TLS stream to the gateway, with both sides authenticated. Raises `NotConnected`."""
    try:
        tcp = await trio.open_tcp_stream(enrolment.gateway_host, enrolment.gateway_port)
    except OSError as error:
        raise NotConnected(f"the gateway cannot be reached: {error}") from error
    stream = trio.SSLStream(tcp, context, server_hostname=enrolment.gateway_host, https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise NotConnected(f"no TLS with the gateway: {error.__cause__ or error}") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def dial_stream(enrolment: Enrolment, identity: Identity, token: str) -> trio.SSLStream[trio.SocketStream]:
    """A raw stream for a console or a file. Raises `OSError` if the gateway cannot be reached."""
    try:
        with trio.fail_after(HANDSHAKE_SECONDS):
            stream = await dial(enrolment, identity.stream)
    except (NotConnected, trio.TooSlowError) as error:
        raise ConnectionError(f"no stream to the controller: {error}") from error
    try:
        with trio.fail_after(HANDSHAKE_SECONDS):
            await stream.send_all(token.encode() + b"\n")
    except (trio.BrokenResourceError, trio.TooSlowError) as error:
        await trio.aclose_forcefully(stream)
        raise ConnectionError("the controller did not accept the stream") from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


class Connection:
    """`run` never returns: it raises `NotConnected` when the connection ends. `welcomed` is called once when the
    connection is established, and `received` for every frame after that; neither may block."""

    def __init__(
        self,
        enrolment: Enrolment,
        identity: Identity,
        host: Host,
        *,
        versions: Versions,
        hello: Callable[[int], Hello],
        welcomed: Callable[[Connection, Welcome], None],
        received: Callable[[DownFrame], None],
    ) -> None:
        self.outbox = Outbox()
        self.identity = identity
        self.ended = trio.Event()
        self._enrolment = enrolment
        self._host = host
        self._versions = versions
        self._hello = hello
        self._welcomed = welcomed
        self._received = received
        self._scope = trio.CancelScope()
        self._closing = False

    def close(self) -> None:
        """Close the connection gracefully from this side."""
        self._closing = True
        self._scope.cancel()

    async def run(self) -> NoReturn:
        reason = "closed by this agent"
        try:
            with self._scope:
                await self._run()
        except* (ConnectionClosed, HandshakeError, NotConnected) as errors:
            reason = _reason(errors)
        finally:
            self.ended.set()
        raise NotConnected(reason)

    async def _run(self) -> None:
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                tls = await dial(self._enrolment, self.identity.control)
        except trio.TooSlowError:
            raise NotConnected(f"the gateway did not answer within {HANDSHAKE_SECONDS:g} seconds") from None
        stream = _Watched(tls)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fail_with, stream)
                socket, welcome = await self._greet(nursery, stream)
                try:
                    self._welcomed(self, welcome)
                    nursery.start_soon(self._write, socket, welcome.protocol)
                    nursery.start_soon(self._beat, welcome.heartbeat_seconds)
                    nursery.start_soon(self._ping, socket, welcome.heartbeat_seconds)
                    while True:
                        self._received(_parse(await socket.get_message()))
                finally:
                    if self._closing:
                        with trio.move_on_after(_RELAYED_CLOSING_SECONDS, shield=True):
                            await socket.aclose()
        finally:
            await trio.aclose_forcefully(tls)

    async def _greet(self, nursery: trio.Nursery, stream: _Watched) -> tuple[WebSocketConnection, Welcome]:
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                socket = await wrap_client_stream(
                    nursery,
                    stream,  # type: ignore[arg-type]  # any trio stream does
                    self._enrolment.gateway_host,
                    AGENT_PATH,
                    message_queue_size=64,
                    max_message_size=MAX_FRAME_BYTES,
                    receive_buffer_size=None,
                    subprotocols=self._versions.names,
                    extra_headers=[(b"User-Agent", f"svc-nodeagent/{agent_version()}".encode())],
                )
                version = self._agreed(socket.subprotocol)
                await socket.send_message(encode(self._hello(version), version))
                first = _parse(await socket.get_message())
        except trio.TooSlowError:
            raise NotConnected(f"the controller did not welcome within {HANDSHAKE_SECONDS:g} seconds") from None
        if not isinstance(first, Welcome):
            raise NotConnected(f"the controller's first frame was {first.frame!r} instead of a welcome")
        if first.protocol != version or first.node_id != self._enrolment.node_id:
            raise NotConnected(f"the controller speaks protocol {first.protocol} and takes us for {first.node_id}")
        return socket, first

    def _agreed(self, chosen: str | None) -> int:
        """The version that the controller chose; if it chose none, the only version that such a controller speaks."""
        version = self._versions.agree(offered := offered_by([chosen] if chosen else []))
        if version is None:
            raise NotConnected(
                f"the controller speaks protocol {offered[-1]}, this agent (release {agent_version()}) speaks"
                f" {self._versions}; upgrade the controller, or install the agent of its release"
            )
        return version

    async def _fail_with(self, stream: _Watched) -> None:
        """Raise `NotConnected` when the stream has ended. Needed because the websocket library does not notice an end
        of the stream before its handshake is complete."""
        await stream.over.wait()
        # Wait until the frames that were already read are processed: one may contain the reason for the closing.
        await trio.sleep(0.1)
        raise NotConnected("the controller ended the connection")

    async def _write(self, socket: WebSocketConnection, version: int) -> None:
        while True:
            for frame in await self.outbox.take():
                await socket.send_message(encode(frame, version))

    async def _beat(self, seconds: float) -> None:
        """Send heartbeats. If the query for the host's capacity hangs, heartbeats are still sent, with the last known
        capacity."""
        capacity: Capacity | None = None
        while True:
            began = trio.current_time()
            try:
                with trio.move_on_after(seconds / 2):
                    capacity = await self._host.capacity()
            except (HostError, OSError) as error:
                log.warning("capacity.unknown", error=str(error))
            if capacity is not None:
                self.outbox.put(Heartbeat(at=datetime.now(UTC), capacity=capacity))
            await trio.sleep_until(began + seconds)

    async def _ping(self, socket: WebSocketConnection, seconds: float) -> None:
        """Send pings, half as often as heartbeats: answering pings took a third of a controller's time with idle
        nodes."""
        await trio.sleep(seconds / 2)
        while True:
            await trio.sleep(2 * seconds)
            try:
                with trio.fail_after(seconds * HEARTBEATS_UNTIL_DEAD):
                    await socket.ping()
            except trio.TooSlowError:
                raise NotConnected(f"no answer for {seconds * HEARTBEATS_UNTIL_DEAD:g} seconds") from None


class _Watched(WrappedStream):
    """A stream that sets an event when the other side has closed it."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        super().__init__(stream)
        self.over = trio.Event()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await super().receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.over.set()
            raise
        if not data:
            self.over.set()
        return data


def _parse(message: str | bytes) -> DownFrame:
    try:
        return DOWN.validate_json(message)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_input=False)]
        log.error("connection.frame_rejected", problems=problems[:5])
        raise NotConnected(
            "the controller sent a frame this agent does not understand; are the versions alike?"
        ) from None


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConnectionClosed) and error.reason is not None:
        return f"closed by the controller: {error.reason.reason or error.reason.name}"
    if isinstance(error, ConnectionRejected) and error.body:
        return f"refused by the controller: {error.body[:MOST_TEXT].decode(errors='replace')}"
    return str(error) or type(error).__name__


_CHUNK = 64 * 1024
_RELAYED_CLOSING_SECONDS = 5.0


# Each side's input is sent to the other, at the pace of the slower, until either side ends.
async def relay(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    """Relay data both ways. Takes ownership of both streams: they are closed when it returns."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_copy, one, other, nursery.cancel_scope)
            nursery.start_soon(_copy, other, one, nursery.cancel_scope)
    finally:
        with trio.move_on_after(_RELAYED_CLOSING_SECONDS, shield=True):
            await _close(one)
            await _close(other)


async def _copy(source: trio.abc.Stream, sink: trio.abc.Stream, over: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(_CHUNK):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # one side has closed: that is the normal end of a console, not an error
    finally:
        over.cancel()


async def _close(stream: trio.abc.Stream) -> None:
    try:
        await stream.aclose()
    except trio.BrokenResourceError:
        return
