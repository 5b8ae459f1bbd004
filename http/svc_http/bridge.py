"""The web tier: passes the API's requests to the core over its Unix socket, and serves the pages that send them.

The web tier has no authority and decides nothing. With each request it passes the client's address, which the core
trusts because the kernel says which account's process connected (`svc_http.peers`). Headers that concern one hop only
are removed (RFC 9110, section 7.6.1). While the core is not running, every call is answered `unavailable` and changes
nothing.

Invariants: a request's body is complete before it takes a connection to the core, and the concurrent requests of one
client are limited, so that no slow or demanding client keeps others from the core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpcore
import structlog
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
from pydantic_core import to_json

from svc_actors.admission import source_of
from svc_common.errors import ServiceError
from svc_http.asgi import OF_PAGES, PAGE_POLICY, ClientGoneError, Header, lifespan, read_whole
from svc_http.peers import CLIENT_HEADER
from svc_http.static_files import (
    ASSET_CACHE,
    NOT_BUILT,
    PAGE_CACHE,
    PLAIN_TEXT,
    STATIC,
    StaticAnswer,
    read_assets,
    read_file,
)

API_PREFIX: Final = "/api/v1"
CONNECTIONS: Final = 900
"""The most connections to the core, which accepts some more. Further requests wait until one is free."""
OF_ONE_CLIENT: Final = 32
"""The most concurrent requests of one client. A request that waits for the next line of a log counts for half a
minute."""
CONNECT_SECONDS: Final = 5.0
SEND_SECONDS: Final = 20.0
"""How long a browser may take to read its answer."""
ANSWER_SECONDS: Final = 60.0
"""Twice the longest time for which an operation keeps its caller waiting."""
_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
)
_TRANSFER: Final = b"transfer-encoding"
_OF_OURS: Final = b"date"
"""A header of the core's answers that is dropped, because this listener adds its own."""
_REPLACED: Final = _HOP | {CLIENT_HEADER, _TRANSFER, b"content-length"}
"""Headers of a request that are not passed on: the body is passed complete, and the client's address is the
connection's."""
_ANSWER_HEADERS: Final = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc_http.bridge")


@dataclass(frozen=True)
class Refusal:
    """An error that this tier answers itself, in the panel's envelope."""

    status: int
    code: str
    message: str
    hint: str = ""
    retry_after: int | None = None


AWAY: Final = Refusal(
    503,
    "unavailable",
    "The service is starting or being replaced.",
    "Nothing was done, unless the whole request had been sent: check, and try again in a moment.",
    2,
)
TOO_MANY: Final = Refusal(
    429,
    "rate_limited",
    f"This address already has {OF_ONE_CLIENT} requests in progress; this one was refused, and nothing was done.",
    "Wait until some of them have ended.",
    1,
)


class Web:
    """The application of the web tier; `core` is the core's socket, `pages` the folder of the built pages."""

    def __init__(self, core: Path, pages: Path = STATIC / "panel") -> None:
        self._pages = _Pages(pages)
        self._pool = httpcore.AsyncConnectionPool(
            uds=str(core), max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=30.0
        )
        self._carrying = Counter[str]()

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(API_PREFIX + "/"):
            await self._carry_in_turn(scope, receive, send)
        elif scope["type"] == "http":
            await _show(send, self._pages.answer(scope))
        else:
            await send({"type": "websocket.close", "code": 1000, "reason": None})

    async def _carry_in_turn(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        client = scope.get("client")
        source = source_of(client[0]) if client is not None else ""
        if self._carrying[source] >= OF_ONE_CLIENT:
            await _refuse(send, TOO_MANY)
            return
        self._carrying[source] += 1
        try:
            await self._carry(scope, receive, send)
        except ClientGoneError:
            return  # nothing was passed to the core
        finally:
            self._carrying[source] -= 1
            if not self._carrying[source]:
                del self._carrying[source]

    async def _carry(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        try:
            body = await read_whole(_chunks(receive)) if _has_body(scope) else b""
        except ServiceError as error:
            await _refuse(send, Refusal(400, error.code.value, error.message))
            return
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._pool.stream(
                        scope["method"],
                        httpcore.URL(scheme=b"http", host=b"core", target=_target(scope)),
                        headers=_carried(scope, body),
                        content=body,
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
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
                log.warning("core.unreachable", error=str(error) or type(error).__name__)
                await _refuse(send, AWAY)
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


def _carried(scope: HTTPScope, body: bytes) -> list[Header]:
    """The headers that are passed on with the request. The client's address is that of the connection; one that the
    client sends is dropped."""
    kept = [(name, value) for name, value in scope["headers"] if name not in _REPLACED]
    if not any(name == b"host" for name, _ in kept):
        kept.append((b"host", b"core"))
    if _has_body(scope):
        kept.append((b"content-length", b"%d" % len(body)))
    client = scope.get("client")
    if client is not None:
        kept.append((CLIENT_HEADER, client[0].encode()))
    return kept


def _has_body(scope: HTTPScope) -> bool:
    named = any(name in (b"content-length", _TRANSFER) for name, _ in scope["headers"])
    return named or (scope["http_version"] == "2" and scope["method"] not in ("GET", "HEAD"))


async def _chunks(receive: ASGIReceiveCallable) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        more = message["more_body"]
        yield message["body"]


class _Pages:
    """The built pages: one HTML document, which loads its assets from here and all data from the API."""

    def __init__(self, folder: Path) -> None:
        self._document, self._assets = read_file(folder / "index.html"), read_assets(folder)

    def answer(self, scope: HTTPScope) -> StaticAnswer:
        path = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return _said(404, "There is no such page.\n")
        if path == "/":
            if self._document is None:
                return _said(503, NOT_BUILT)
            policy = {"Cache-Control": PAGE_CACHE, "Content-Security-Policy": PAGE_POLICY}
            return self._document.answer(*_asked(scope), policy)
        asset = self._assets.get(path.removeprefix("/assets/")) if path.startswith("/assets/") else None
        if asset is None:
            return _said(404, "There is no such page.\n")
        return asset.answer(*_asked(scope), {"Cache-Control": ASSET_CACHE})


def _asked(scope: HTTPScope) -> tuple[str, str]:
    """The headers that choose a representation."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    return headers.get(b"accept-encoding", ""), headers.get(b"if-none-match", "")


def _said(status: int, text: str) -> StaticAnswer:
    return StaticAnswer(status, {"Content-Type": PLAIN_TEXT}, text.encode())


async def _show(send: ASGISendCallable, answer: StaticAnswer) -> None:
    """Send the answer with the security headers of every page; the answer's own headers take precedence."""
    headers = {name.lower().encode(): value.encode("latin-1") for name, value in answer.headers.items()}
    kept = [*headers.items(), *((name, value) for name, value in OF_PAGES if name not in headers)]
    await _send(send, answer.status, kept, answer.body, length=answer.status != 304)


async def _refuse(send: ASGISendCallable, refusal: Refusal) -> None:
    error = {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
    body = to_json({"error": error})
    headers = [*_ANSWER_HEADERS]
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after))
    await _respond(send, refusal.status, headers, body)


async def _respond(send: ASGISendCallable, status: int, headers: list[Header], body: bytes) -> None:
    await _send(send, status, [*headers, (b"x-content-type-options", b"nosniff")], body)


async def _send(
    send: ASGISendCallable, status: int, headers: list[Header], body: bytes, *, length: bool = True
) -> None:
    if length:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
    with trio.CancelScope(relative_deadline=SEND_SECONDS):
        await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})
