"""One HTTP request and its answer, over ASGI: headers, body, the headers every answer carries, deadlines, log and
metrics.

Invariants:

- a body is read only when the operation asks for it, so back-pressure reaches the sender, and a body that is read
  completely is bounded;
- a body that was not read is read and dropped before the answer, up to a bound: a connection closed over unread bytes
  would lose the answer as well;
- a client that does not read its answer is disconnected after `SEND_DEADLINE` seconds. (Over HTTP/1.1 a send that has
  started cannot be cancelled: there the kernel ends it, see `svc_http.server`.)
- a request is logged by its operation, never by its path: paths carry tickets and sign-on links.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable

import structlog
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, HTTPScope

from svc_common.errors import invalid
from svc_http.asgi import MAX_BODY, OF_ANSWERS, OF_PAGES, ClientGoneError, Header, read_whole
from svc_http.metrics import Metrics
from svc_http.peers import CLIENT_HEADER, PEER, PeerKind

Reply = tuple[int, bytes, list[Header]]
"""Status, body and headers of a complete answer."""

JSON_TYPE = b"application/json"
CHUNK_DEADLINE = 60.0
SEND_DEADLINE = 20.0
_DRAINED_BYTES = 16 * 1024 * 1024
_DRAIN_DEADLINE = 5.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_BODY_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


class Exchange:
    """`operation` and `actor` are set for the log and the metrics as soon as they are known."""

    __slots__ = ("_headers", "_receive", "_send", "_unread", "actor", "operation", "request_id", "scope", "status")

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            # h2 sends a cookie in pieces (RFC 9113, section 8.2.3); all other repeated headers are read as a list.
            join = b"; " if name == b"cookie" else b", "
            self._headers[name] = self._headers[name] + join + value if name in self._headers else value
        given = self._headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        # In HTTP/1 headers announce a body. Over h2 (RFC 9113, section 8.1.1) a body may come without an announcement,
        # but a GET without one has no body there, either.
        announced = not _BODY_HEADERS.isdisjoint(self._headers)
        self._unread = announced or (scope["http_version"] == "2" and scope["method"] not in ("GET", "HEAD"))
        self.operation = "unmatched"
        self.actor: str | None = None
        self.status: int | None = None

    def header(self, name: bytes) -> str | None:
        """The header's value; `name` in lower case."""
        value = self._headers.get(name)
        return value.decode("latin-1") if value is not None else None

    def cookie(self, name: str) -> str | None:
        for pair in (self.header(b"cookie") or "").split(";"):
            key, separator, value = pair.strip().partition("=")
            if separator and key == name:
                return value
        return None

    @property
    def address(self) -> str | None:
        """The client's address: that of the connection, or, over the service's socket, the address that the web tier
        has sent. Other forwarded headers are not trusted."""
        peer = PEER.get()
        if peer is None:
            client = self.scope.get("client")
            return client[0] if client else None
        if peer.kind is PeerKind.WEB:
            return self.header(CLIENT_HEADER)
        return f"local:uid={peer.uid}"

    async def body(self, most: int = MAX_BODY) -> bytes:
        """The complete body. See `read_whole`."""
        return await read_whole(self._chunks(), most)

    async def upload(self) -> AsyncIterator[bytes]:
        """The body chunk by chunk, of any length. Raises `invalid` if none arrives for `CHUNK_DEADLINE` seconds."""
        chunks = self._chunks()
        while True:
            with trio.move_on_after(CHUNK_DEADLINE) as deadline:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
            if deadline.cancelled_caught:
                raise invalid(f"Nothing of the upload arrived for {CHUNK_DEADLINE:g} seconds.")
            yield chunk

    async def respond(self, status: int, body: bytes, headers: Iterable[Header]) -> None:
        """Send a complete answer. Raises TooSlowError if the client does not read it."""
        if self._unread:
            await self._drop_the_rest()
        with trio.CancelScope(relative_deadline=SEND_DEADLINE) as deadline:
            await self._begin(status, [*headers, (b"content-length", b"%d" % len(body)), *OF_ANSWERS])
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        if deadline.cancelled_caught:
            raise trio.TooSlowError

    async def stream(self, status: int, chunks: AsyncIterator[bytes], headers: Iterable[Header]) -> None:
        """Send chunks as they are produced, until the last one or until the client has disconnected."""
        gone = False
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal gone
                while (await self._receive())["type"] != "http.disconnect":
                    pass
                gone = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            with trio.fail_after(SEND_DEADLINE):
                await self._begin(status, [*headers, *OF_ANSWERS])
            async for chunk in chunks:
                with trio.CancelScope(relative_deadline=SEND_DEADLINE) as deadline:
                    await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                if deadline.cancelled_caught:
                    raise trio.TooSlowError
            nursery.cancel_scope.cancel()
        if not gone:
            # The last send is outside the nursery, because hypercorn reports a disconnect from within the last send of
            # every answer.
            with trio.fail_after(SEND_DEADLINE):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def observed_send(self, message: ASGISendEvent) -> None:
        """`send` for an application below this one: completes the headers, and records the status."""
        if message["type"] == "http.response.start":
            given = list(message["headers"])
            names = {name.lower() for name, _ in given}
            await self._begin(message["status"], [*given, *(item for item in OF_PAGES if item[0] not in names)])
        else:
            with trio.fail_after(SEND_DEADLINE):
                await self._send(message)

    def account(self, metrics: Metrics, started: float) -> None:
        """Count and log the result of the request."""
        took = time.perf_counter() - started
        metrics.answered(self.operation, self.status, took)
        log.info(
            "request.answered",
            request_id=self.request_id,
            method=self.scope["method"],
            operation=self.operation,
            actor=self.actor,
            status=self.status,
            milliseconds=round(took * 1000, 1),
        )

    async def _begin(self, status: int, headers: list[Header]) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})

    async def _chunks(self) -> AsyncIterator[bytes]:
        while self._unread:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            self._unread = message["more_body"]
            if message["body"]:
                yield message["body"]

    async def _drop_the_rest(self) -> None:
        dropped = 0
        with trio.move_on_after(_DRAIN_DEADLINE):
            async for chunk in self._chunks():
                dropped += len(chunk)
                if dropped > _DRAINED_BYTES:
                    return
