"""/metrics and /healthz for the operator's own tools, on a listener of its own that only this machine reaches.

`/healthz` answers 200 if every check passes and 503 otherwise, with `{"<check>": "ok" | "<what is wrong>"}`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_http.asgi import lifespan
from svc_http.metrics import Metrics

Check = Callable[[], Awaitable[None]]
"""Raises `ServiceError` if what it checks is not well."""

CHECK_DEADLINE = 3.0


def operations_app(metrics: Metrics, checks: Mapping[str, Check]) -> ASGIFramework:
    """The application to give to `server.serve_loopback`."""
    return partial(_answer, metrics, checks)


def database_check(database: Database) -> Check:
    async def check() -> None:
        await database.fetchval("SELECT 1", timeout=CHECK_DEADLINE)

    return check


async def _answer(
    metrics: Metrics,
    checks: Mapping[str, Check],
    scope: Scope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "http":
        if scope["path"] == "/metrics":
            await _respond(send, 200, CONTENT_TYPE_LATEST, await metrics.exposition())
        elif scope["path"] == "/healthz":
            found = {name: await _result(check) for name, check in checks.items()}
            well = all(result == "ok" for result in found.values())
            await _respond(send, 200 if well else 503, "application/json", to_json(found))
        else:
            await _respond(send, 404, "text/plain", b"/metrics and /healthz\n")


async def _result(check: Check) -> str:
    with trio.move_on_after(CHECK_DEADLINE):
        try:
            await check()
        except ServiceError as error:
            return error.message
        return "ok"
    return f"No answer within {CHECK_DEADLINE:g} seconds."


async def _respond(send: ASGISendCallable, status: int, content_type: str, body: bytes) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
