"""The span of a request: with the attributes of OpenTelemetry's HTTP conventions, and the id of the request in the
logs.

No address of a client, no query, no header: these are the caller's own. Secrets are removed from paths, as in logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from svc.registry.operation import Operation
from svc_actors.tracing import ORIGIN, Kind, Origin, Tracer
from svc_http.exchange import Exchange
from svc_http.logs import without_secrets

_FIRST_ERROR_OF_OURS = 500


@contextmanager
def request_span(
    tracer: Tracer, exchange: Exchange, operation: Operation[Any, Any, Any], prefix: str
) -> Iterator[None]:
    """A block that answers `exchange`. The caller's trace is continued; whether it is sampled is decided here."""
    route = prefix + operation.route.path
    method = exchange.scope["method"]
    told: dict[str, str | int] = {
        "http.request.method": method,
        "http.route": route,
        "url.path": without_secrets(exchange.scope["path"]),
        "url.scheme": exchange.scope["scheme"],
        "network.protocol.version": exchange.scope["http_version"],
        "svc.request.id": exchange.request_id,
    }
    if (server := exchange.scope.get("server")) is not None:
        told["server.address"] = server[0]
        if server[1] is not None:
            told["server.port"] = server[1]
    caller = exchange.header(b"traceparent")
    span = tracer.start(f"{method} {route}", Kind.SERVER, told, caller=caller)
    # ORIGIN is not reset: the request's task ends with it, and its last log line names the trace as well.
    ORIGIN.set(Origin(exchange.request_id, span))
    try:
        yield
    finally:
        if exchange.status is not None:
            span.note({"http.response.status_code": exchange.status})
            if exchange.status >= _FIRST_ERROR_OF_OURS:
                span.fail(str(exchange.status))
        span.end()
