"""Byte streams between the controller and a node: consoles that the controller expects, files that a node may read.

The agent dials the gateway with ALPN `svc-stream/1` and its certificate, and sends a token and a newline; what follows
is the stream. Invariants:

- a token is valid only for the node it was issued to. A node's streams are limited; at the limit, a stream that has
  sent no token is closed for the next one;
- a console's token is valid once, and only while the controller waits for it;
- a file's token is signed and not stored, so a download survives a restart of the controller. It names a file by its
  key, never by a path.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio
from pydantic import ValidationError

from svc_actors.admission import of_streams
from svc_nodeagent.protocol import Wire
from svc_nodeagent.wrapped_stream import WrappedStream

FILE_TOKEN_SECONDS: Final = 24 * 3600.0
_TOKEN_LIMIT: Final = 1024
_TOKEN_SECONDS: Final = 10.0
_CHUNK: Final = 256 * 1024
_STALLED_SECONDS: Final = 60.0
log = structlog.get_logger(__name__)

FindFile = Callable[[str], Path | None]
"""Returns the path of the file with a key, or None if there is none."""


@dataclass
class _Expected:
    node_id: UUID
    arrived: trio.Event = field(default_factory=trio.Event)
    stream: _HandedOver | None = None


class _FileClaim(Wire):
    node_id: UUID
    file: str
    expires: float


class NodeStreams:
    """The streams that nodes open to this controller. A caller gets a token (`expect`, `joined`, `offer_file`) and
    sends it to the node's agent; the gateway calls `accept` for each stream that a node has opened. `secret` signs the
    tokens of files."""

    def __init__(self, secret: bytes, find_file: FindFile) -> None:
        self._secret = secret
        self._find_file = find_file
        self._expected: dict[str, _Expected] = {}
        self._room = of_streams()

    @asynccontextmanager
    async def expect(self, node_id: UUID) -> AsyncIterator[tuple[str, Callable[[], _Arrival]]]:
        """A token, and a function that returns the awaited arrival: its `take` waits for the stream that the node opens
        with the token. Leaving the block withdraws the token, and closes a stream that nobody has taken."""
        token = f"console.{secrets.token_urlsafe(32)}"
        expected = self._expected[token] = _Expected(node_id)
        try:
            yield token, lambda: _Arrival(expected)
        finally:
            del self._expected[token]
            if expected.stream is not None:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(expected.stream)

    @asynccontextmanager
    async def joined(self, one: UUID, other: UUID) -> AsyncIterator[tuple[str, str]]:
        """A token for each of two nodes. Each receives what the other sends, at the pace of the slower one. When either
        ends its stream, or the block is left, both are closed."""
        async with (
            self.expect(one) as (token, arrival),
            self.expect(other) as (other_token, other_arrival),
            trio.open_nursery() as nursery,
        ):

            async def join() -> None:
                try:
                    async with await arrival().take() as stream, await other_arrival().take() as other_stream:
                        await _relay(stream, other_stream)
                except trio.BrokenResourceError:
                    log.info("stream.ended_early", node_id=str(one), other_node_id=str(other))

            nursery.start_soon(join)
            yield token, other_token
            nursery.cancel_scope.cancel()

    def offer_file(self, node_id: UUID, file: str, *, lifetime: float = FILE_TOKEN_SECONDS) -> str:
        """A token with which this node may read the file with the key `file`, for `lifetime` seconds."""
        claim = _FileClaim(node_id=node_id, file=file, expires=time.time() + lifetime).model_dump_json().encode()
        return f"file.{base64.urlsafe_b64encode(claim).decode()}.{self._signature(claim)}"

    async def accept(self, node_id: UUID, stream: trio.abc.Stream) -> None:
        """Serve a stream that a node has dialled, until it is closed, here or by the task that expected it."""
        reading = trio.CancelScope(relative_deadline=_TOKEN_SECONDS)
        slot = self._room.enter(str(node_id), reading.cancel)
        try:
            if slot is None:
                log.warning("stream.no_room", node_id=str(node_id))
                return
            with reading:
                token = await _read_token(stream)
            if reading.cancelled_caught:
                return
            slot.busy()
            expected = self._expected.get(token)
            if expected is not None and expected.node_id == node_id and not expected.arrived.is_set():
                expected.stream = handed_over = _HandedOver(stream)
                expected.arrived.set()
                await handed_over.closed.wait()
                return
            path = self._file_of(node_id, token)
            if path is not None:
                await _send_file(path, stream)
            else:
                log.warning("stream.refused", node_id=str(node_id))
            with trio.move_on_after(_TOKEN_SECONDS):
                await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.info("stream.ended_early", node_id=str(node_id))
        finally:
            if slot is not None:
                slot.leave()
            await trio.aclose_forcefully(stream)

    def _file_of(self, node_id: UUID, token: str) -> Path | None:
        kind, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        if kind != "file":
            return None
        try:
            claim_bytes = base64.urlsafe_b64decode(body)
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(self._signature(claim_bytes).encode(), signature.encode()):
            return None
        try:
            claim = _FileClaim.model_validate_json(claim_bytes)
        except ValidationError:
            return None
        if claim.node_id != node_id or claim.expires < time.time():
            return None
        return self._find_file(claim.file)

    def _signature(self, claim: bytes) -> str:
        return hmac.new(self._secret, claim, "sha256").hexdigest()


class _HandedOver(WrappedStream):
    """A stream handed to another task. The task that accepted it waits until it is closed, and closes it when
    cancelled."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.closed = trio.Event()

    async def aclose(self) -> None:
        try:
            await super().aclose()
        finally:
            self.closed.set()


class _Arrival:
    def __init__(self, expected: _Expected) -> None:
        self._expected = expected

    async def take(self) -> trio.abc.Stream:
        """Wait for the stream; from then on it is the caller's to close."""
        await self._expected.arrived.wait()
        stream, self._expected.stream = self._expected.stream, None
        if stream is None:
            raise RuntimeError("a stream is taken once")
        return stream


async def _relay(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    """Copy bytes from one stream to the other until either ends."""
    async with trio.open_nursery() as nursery:

        async def pass_on(source: trio.abc.Stream, sink: trio.abc.Stream) -> None:
            try:
                while data := await source.receive_some(_CHUNK):
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                log.info("stream.ended_early")
            nursery.cancel_scope.cancel()

        nursery.start_soon(pass_on, one, other)
        nursery.start_soon(pass_on, other, one)


async def _read_token(stream: trio.abc.Stream) -> str:
    """Read byte by byte up to the newline, so that no byte of the stream is lost. TLS has buffered them already."""
    token = bytearray()
    while len(token) <= _TOKEN_LIMIT:
        byte = await stream.receive_some(1)
        if not byte:
            raise trio.BrokenResourceError("ended before its token")
        if byte == b"\n":
            return token.decode("ascii", errors="replace")
        token += byte
    raise trio.BrokenResourceError("no token in its first line")


async def _send_file(path: Path, stream: trio.abc.Stream) -> None:
    """Send the file. A reader that takes nothing for a minute is considered gone."""
    async with await trio.open_file(path, "rb") as file:
        while data := await file.read(_CHUNK):
            with trio.move_on_after(_STALLED_SECONDS) as scope:
                await stream.send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the reader stalled")
