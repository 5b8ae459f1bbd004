"""The transport passed to asyncpg: a non-blocking socket, read by the task that awaits a reply.

No task stands between a query and its reply, so Trio's cancellation and deadlines reach the socket directly; the loop
around it is in `svc_actors.store.loop`.

Invariants: giving up a wait, for whatever reason, closes the connection before another task can use it. Awaiting a
reply is a checkpoint, except for replies that arrive within microseconds: then there is one every millisecond.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

if TYPE_CHECKING:
    from svc_actors.store.loop import Future

_RECEIVE_SIZE = 65536
_SEND_SIZE = 1024 * 1024
_QUICK = 30e-6
"""How long to poll for a reply before sleeping until it comes, in seconds."""
_LONGEST_RUN = 1e-3
"""How long a task with only quick replies may run before other tasks get their turn, in seconds."""


class _WireProtocol(Protocol):
    """The methods of an asyncio protocol that a transport calls."""

    def connection_made(self, transport: Any) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class _Answer(Enum):
    """What to do with the extra answer of a command that asyncpg does not know of."""

    TAKEN_OUT = auto()
    JOINED = auto()


@dataclass(slots=True)
class Traffic:
    """Counters over all connections of a pool."""

    awaited: int = 0


class Link:
    """asyncpg's transport: a non-blocking socket, read by the task that awaits a reply. Writes are sent at once; what
    the kernel does not take is sent while the reply is awaited.

    A command can be sent ahead of the next statement, in the same packet (`send_ahead`), and another after it
    (`send_behind`), so that BEGIN and COMMIT cost no round trip. asyncpg knows nothing of them: the answer to the first
    is removed from what arrives, the answer to the second is joined to the statement's."""

    __slots__ = (
        "_ahead",
        "_answers",
        "_arrived",
        "_backlog",
        "_behind",
        "_closed",
        "_descriptor",
        "_protocol",
        "_rested_at",
        "_socket",
        "_traffic",
        "interrupted",
    )

    def __init__(self, sock: socket.socket, protocol: _WireProtocol, traffic: Traffic) -> None:
        self._socket = sock
        self._descriptor = sock.fileno()
        self._protocol = protocol
        self._traffic = traffic
        self._rested_at = 0.0
        self._backlog = bytearray()
        self._closed = False
        self.interrupted = False
        self._ahead = b""
        self._behind = b""
        self._answers = deque[_Answer]()
        """Answers to the last packet that are still awaited and must not be passed on unchanged."""
        self._arrived = bytearray()
        """The part received so far of a message that is not complete, while such answers are awaited."""

    def send_ahead(self, sql: str) -> None:
        """Send this command (it gives no rows) together with the next statement."""
        self._ahead = _command(sql)

    def take_back(self) -> bool:
        """Drop the command that was to be sent ahead; False if it has been sent."""
        kept, self._ahead = bool(self._ahead), b""
        return kept

    @contextmanager
    def send_behind(self, sql: str) -> Iterator[None]:
        """Send this command (it gives no rows) together with the statement of this block, which is already prepared.

        The statement's command tag is then that of the command; an error of either is the statement's.
        """
        self._behind = _command(sql)
        try:
            yield
        finally:
            self._behind = b""

    @property
    def backend(self) -> tuple[int, int]:
        """The server process behind this link, and the secret that allows to cancel its query."""
        protocol = cast(Any, self._protocol)
        return protocol.backend_pid, protocol.backend_secret

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._send(self._with_commands(data))

    def writelines(self, buffers: list[memoryview]) -> None:
        self.write(b"".join(buffers))

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        raise NotImplementedError("COPY is not offered over this transport")

    resume_reading = pause_reading

    def set_protocol(self, protocol: _WireProtocol) -> None:
        self._protocol = protocol

    def abort(self) -> None:
        """Close the socket and wake the tasks that wait for it."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._descriptor)
            self._socket.close()

    close = abort

    def hand_over(self) -> socket.socket:
        """Give the socket to another link; this one is closed without closing it."""
        self._closed = True
        return self._socket

    async def wait_readable(self) -> None:
        if self._closed:
            raise ConnectionResetError("the connection is closed")
        await trio.lowlevel.wait_readable(self._descriptor)

    def is_quiet(self) -> bool:
        """Whether the socket is open and there is nothing to read from it."""
        if self._closed:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False

    def receive(self) -> None:
        """Feed the protocol with the data that has arrived, if any; at the end of the stream the connection is lost."""
        if self._closed:
            return
        try:
            data = self._socket.recv(_RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if data:
            self._deliver(data)
        else:
            self._lose(None)

    async def pump(self, future: Future) -> None:
        """Read, and send what is left to send, until `future` is done. Giving up earlier breaks the connection, since
        nobody would take the reply that is on its way."""
        self._traffic.awaited += 1
        try:
            if self._traffic.awaited == 1 and not self._backlog:
                self._look_for_a_quick_reply(future)
            if not future.finished:
                await self._wait_for(future)
                return
        finally:
            self._traffic.awaited -= 1
        if perf_counter() - self._rested_at > _LONGEST_RUN:
            await trio.lowlevel.checkpoint()
            self._rested_at = perf_counter()

    def _look_for_a_quick_reply(self, future: Future) -> None:
        # The reply to a short query arrives sooner than this thread could sleep and wake, which would be most of the
        # query's cost; so this polls for a moment. While several replies are awaited, there is always one with which to
        # continue, and polling is not needed.
        give_up_at = perf_counter() + _QUICK
        while not (future.finished or self._closed) and perf_counter() < give_up_at:
            self.receive()

    async def _wait_for(self, future: Future) -> None:
        wait_readable = trio.lowlevel.wait_readable
        descriptor = self._descriptor
        try:
            while not future.finished:
                if self._closed:
                    raise ConnectionResetError("the connection is closed")
                if self._backlog:
                    await self._send_backlog_while_receiving()
                else:
                    await wait_readable(descriptor)
                    self.receive()
        except trio.ClosedResourceError:
            if not future.finished:
                raise ConnectionResetError("the connection was closed") from None
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Close the connection in the middle of a query; the task that awaits its reply gets a lost connection."""
        if not self._closed:
            self.interrupted = True
            self._lose(ConnectionAbortedError("the wait for a reply was given up"))

    async def _send_backlog_while_receiving(self) -> None:
        # If its replies are not read, the server stops reading, so both directions have to run concurrently.
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                with suppress(trio.ClosedResourceError):
                    while not self._closed:
                        await trio.lowlevel.wait_readable(self._descriptor)
                        self.receive()

            nursery.start_soon(receive)
            with suppress(trio.ClosedResourceError):
                while self._backlog and not self._closed:
                    await trio.lowlevel.wait_writable(self._descriptor)
                    with memoryview(self._backlog) as pending:
                        sent = self._try_send(pending[:_SEND_SIZE])
                    del self._backlog[:sent]
            nursery.cancel_scope.cancel()

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        if self._closed:
            return
        if self._backlog:
            self._backlog += data
            return
        sent = self._try_send(data)
        if sent < len(data):
            self._backlog += memoryview(data)[sent:]

    def _try_send(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes the kernel took; all of them, as far as the caller knows, once the connection is broken."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The reader reports the error, after it has read the server's last messages, which may still be in the
            # socket.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return len(data)

    def _with_commands(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        if self._ahead:
            data, self._ahead = self._ahead + data, b""
            self._answers.append(_Answer.TAKEN_OUT)
        if self._behind:
            data, self._behind = bytes(data) + self._behind, b""
            self._answers.append(_Answer.JOINED)
        return data

    def _deliver(self, data: bytes) -> None:
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        if self._answers:
            self._arrived += data
            data = self._without_commands(self._arrived)
        if data:
            self._protocol.data_received(data)

    def _without_commands(self, arrived: bytearray) -> bytes:
        """The part of `arrived` to pass on to asyncpg. Takes whole messages: each starts with its type, one byte, and
        its length without the type, four bytes. An answer ends with ReadyForQuery.

        BEGIN is answered by C Z. Neither is passed on; unsolicited messages in between (a parameter, a notice, a
        notification) are. An error there breaks the connection, since the next answer would be taken for the
        statement's. A statement with COMMIT behind it is answered by 2 C Z, C Z, and the first Z is left out. So the
        last C and Z are the statement's for asyncpg: the tag says COMMIT or ROLLBACK, and an error of the statement
        (E Z, C Z) is raised once the server has rolled back.
        """
        passed = bytearray()
        while self._answers and len(arrived) >= 5:
            end = 1 + int.from_bytes(arrived[1:5])
            if len(arrived) < end:
                break
            message = bytes(arrived[:end])
            del arrived[:end]
            match message[:1]:
                case b"Z":
                    self._answers.popleft()
                case b"C" if self._answers[0] is _Answer.TAKEN_OUT:
                    continue
                case b"E" if self._answers[0] is _Answer.TAKEN_OUT:
                    self._protocol.data_received(bytes(passed) + message)
                    self._lose(ConnectionAbortedError("the transaction could not be started"))
                    return b""
                case _:
                    passed += message
        if not self._answers:
            passed += arrived
            arrived.clear()
        return bytes(passed)

    def _lose(self, error: Exception | None) -> None:
        if not self._closed:
            self.abort()
            self._protocol.connection_lost(error)


def _command(sql: str) -> bytes:
    """A simple query, as it is sent."""
    text = sql.encode() + b"\0"
    return b"Q" + (len(text) + 4).to_bytes(4) + text


class TLSLink(Link):
    """A `Link` whose bytes pass through an `ssl.SSLObject` in memory."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(
        self,
        sock: socket.socket,
        protocol: _WireProtocol,
        traffic: Traffic,
        context: ssl.SSLContext,
        server_hostname: str | None,
    ) -> None:
        super().__init__(sock, protocol, traffic)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)

    async def handshake(self) -> None:
        try:
            while True:
                try:
                    self._tls.do_handshake()
                except ssl.SSLWantReadError:
                    self._send(self._outgoing.read())
                    await trio.lowlevel.wait_readable(self._descriptor)
                    data = self._socket.recv(_RECEIVE_SIZE)
                    if not data:
                        raise ConnectionResetError("the database closed the connection in the TLS handshake") from None
                    self._incoming.write(data)
                else:
                    self._send(self._outgoing.read())
                    return
        except BaseException:
            self.abort()
            raise

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._tls if name == "ssl_object" else super().get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) and not self._closed:
            self._tls.write(self._with_commands(data))
            self._send(self._outgoing.read())

    def _deliver(self, data: bytes) -> None:
        self._incoming.write(data)
        try:
            while not self._closed:
                plain = self._tls.read(_RECEIVE_SIZE)
                if not plain:
                    self._lose(None)
                    return
                self._feed(plain)
        except ssl.SSLWantReadError:
            if self._outgoing.pending:
                self._send(self._outgoing.read())
        except ssl.SSLError as error:
            self._lose(error)
