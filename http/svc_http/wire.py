"""One HTTP exchange below Quart: request id, headers that every response carries, deadlines for sending, log and
figures.

Invariants:

- a response that its reader does not take is given up after `SEND_DEADLINE` seconds a chunk, so that a slow reader
  costs one task and one socket buffer, for a bounded time. (Over HTTP/1.1 the last send is not cancellable: there
  the kernel ends it, see `svc_http.server`.)
- a request is logged by its operation, never by its path: paths carry tickets and sign-on links.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable
from typing import Any, Protocol, cast

import structlog
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
from quart.typing import ResponseTypes
from quart.wrappers import Request
from quart_trio.asgi import TrioASGIHTTPConnection

from svc_http.body import IncomingBody
from svc_http.metrics import Metrics

JSON_TYPE = "application/json"
SEND_DEADLINE = 20.0
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_UNIVERSAL = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_UNLESS_GIVEN = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


class Exchange:
    """What is known of one request beside Quart's own object; kept in the ASGI scope."""

    __slots__ = ("actor", "answered", "body", "operation", "request_id", "status")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.body = IncomingBody()
        self.operation = "unmatched"
        self.actor: str | None = None
        self.status: int | None = None
        self.answered = False


def exchange_of(scope: Any) -> Exchange:
    exchange: Exchange = scope["svc.exchange"]
    return exchange


class _Measured(Protocol):
    metrics: Metrics


class Connection(TrioASGIHTTPConnection):
    """Quart-Trio's connection, with what this module promises around it."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        scope = self.scope
        exchange = Exchange(_request_id(scope["headers"]))
        scope["svc.exchange"] = exchange  # type: ignore[typeddict-unknown-key]
        identity = (b"x-request-id", exchange.request_id.encode())
        started = time.perf_counter()

        async def bounded_send(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = _completed(message["headers"], identity)
            elif message["type"] == "http.response.body":
                exchange.answered = not message["more_body"]
            with trio.fail_after(SEND_DEADLINE):
                await send(message)

        slow = False
        try:
            await super().__call__(receive, bounded_send)
        except* trio.TooSlowError:
            slow = True
        finally:
            metrics = cast(_Measured, self.app).metrics
            took = time.perf_counter() - started
            metrics.answered(exchange.operation, exchange.status, took)
            log.info(
                "request",
                request_id=exchange.request_id,
                method=scope["method"],
                operation=exchange.operation,
                actor=exchange.actor,
                status=exchange.status,
                milliseconds=round(took * 1000, 1),
                reader="too slow" if slow else None,
            )

    async def handle_messages(  # type: ignore[override]
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Feed the body to whoever reads it; end the request when the client has gone."""
        body = exchange_of(self.scope).body
        while True:
            message = await receive()
            if message["type"] == "http.request":
                await body.feed(message["body"], last=not message["more_body"])
            elif message["type"] == "http.disconnect":
                break
        # Hypercorn says so at the end of every answer as well, from within the last send: cancelling that would leave
        # the connection neither idle nor closed.
        if not exchange_of(self.scope).answered:
            nursery.cancel_scope.cancel()

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        await exchange_of(self.scope).body.drain()
        await super()._send_response(send, response)


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return secrets.token_hex(12)


def _completed(headers: Iterable[tuple[bytes, bytes]], identity: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    given = list(headers)
    names = {name.lower() for name, _ in given}
    given += [header for header in _UNLESS_GIVEN if header[0] not in names]
    return [*given, *_UNIVERSAL, identity]
