"""The web tier: pages, and the API's requests carried to the core over its Unix socket.

It holds no authority and decides nothing: what it says of a request is from which address it came, which the core
believes because the kernel tells it whose process connected (`svc_http.peers`). Headers that only concern one hop stay
behind (RFC 9110, section 7.6.1). While the core is away every call is answered `unavailable`, and nothing was done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import httpcore
import structlog
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
from pydantic_core import to_json
from quart_trio import QuartTrio

from svc_http.peers import CLIENT_HEADER

API_PREFIX: Final = "/api/v1"
CONNECTIONS: Final = 200
"""To the core: more requests at once wait for one."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
"""The longest that an operation keeps its caller waiting is half of that."""
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
)
_TRANSFER: Final = b"transfer-encoding"
_OF_OURS: Final = b"date"
"""Which every answer of this listener has anyhow."""
_ANSWER_HEADERS: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc_http.bridge")


class ClientGoneError(Exception):
    """The client went away before its request was whole."""


class Web(QuartTrio):
    """The application of the web tier; `core` is the core's socket."""

    def __init__(self, core: Path) -> None:
        super().__init__("svc_http", static_folder=None)
        self._pool = httpcore.AsyncConnectionPool(
            uds=str(core), max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=30.0
        )

    async def asgi_app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http" and scope["path"].startswith(API_PREFIX + "/"):
            await self._carry(scope, receive, send)
        else:
            await super().asgi_app(scope, receive, send)

    async def _carry(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._pool.stream(
                        scope["method"],
                        httpcore.URL(scheme=b"http", host=b"core", target=_target(scope)),
                        headers=_carried(scope),
                        content=_body(receive) if _has_body(scope) else None,
                        extensions={
                            "timeout": {
                                "connect": CONNECT_SECONDS,
                                "read": ANSWER_SECONDS,
                                "write": ANSWER_SECONDS,
                                "pool": ANSWER_SECONDS,
                            }
                        },
                    )
                )
            except ClientGoneError:
                return
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
                log.warning("core.unreachable", error=str(error) or type(error).__name__)
                await _refuse(send)
                return
            headers = [(name.lower(), value) for name, value in answer.headers]
            kept = [(name, value) for name, value in headers if name not in (*_HOP, _TRANSFER, _OF_OURS)]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept, "trailers": False})
            async for chunk in answer.aiter_stream():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def aclose(self) -> None:
        await self._pool.aclose()


def _target(scope: HTTPScope) -> bytes:
    query = scope["query_string"]
    return scope["raw_path"] + (b"?" + query if query else b"")


def _carried(scope: HTTPScope) -> list[tuple[bytes, bytes]]:
    """The request's own headers; the client's address is the connection's, whatever the client says."""
    kept = [(name, value) for name, value in scope["headers"] if name not in _HOP and name != CLIENT_HEADER]
    names = {name for name, _ in kept}
    if b"host" not in names:
        kept.append((b"host", b"core"))
    if _has_body(scope) and names.isdisjoint({b"content-length", _TRANSFER}):
        kept.append((_TRANSFER, b"chunked"))  # Over HTTP/2 the end of a body need not be announced.
    client = scope.get("client")
    if client is not None:
        kept.append((CLIENT_HEADER, client[0].encode()))
    return kept


def _has_body(scope: HTTPScope) -> bool:
    named = any(name in (b"content-length", _TRANSFER) for name, _ in scope["headers"])
    return named or (scope["http_version"] == "2" and scope["method"] not in ("GET", "HEAD"))


async def _body(receive: ASGIReceiveCallable) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        more = message["more_body"]
        if message["body"]:
            yield message["body"]


async def _refuse(send: ASGISendCallable) -> None:
    error = {
        "code": "unavailable",
        "message": "The service is starting or being replaced.",
        "hint": "Nothing was done, unless the request had been sent whole: look, and try again in a moment.",
    }
    body = to_json({"error": error})
    headers = [*_ANSWER_HEADERS, (b"retry-after", b"2"), (b"content-length", b"%d" % len(body))]
    with trio.CancelScope(relative_deadline=5):
        await send({"type": "http.response.start", "status": 503, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})
