"""The application of a registry: every operation at its route below /api/v1, and the OpenAPI document.

A request takes a direct path: route, credentials, registry (all checks, then the handler), response model, bytes. This
path is plain ASGI, without Quart's task, context and routing for each request: they would be half of a read's cost.
Pages and websockets are Quart-Trio's; the service's composer adds them to the application.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import cache
from typing import Any, Generic
from urllib.parse import parse_qsl

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from svc.registry.idempotency import KEY_FIELD
from svc.registry.openapi import document
from svc.registry.operation import Context, Effects, Operation, Presentation, ServicesT
from svc.registry.parameters import Parameters
from svc.registry.principal import Access, Principal
from svc.registry.registry import Entry, Registry
from svc_actors.store import Caller, Lane, Via, enter_lane
from svc_actors.tracing import ORIGIN, Kind, Origin, Tracer
from svc_common.errors import invalid
from svc_http.asgi import MAX_BODY, MAX_PUBLIC_BODY, ClientGoneError, Header
from svc_http.credentials import Authenticator, Credentials
from svc_http.errors import as_service_error, failure, no_such_path, wrong_method
from svc_http.exchange import JSON_TYPE, Exchange, Reply
from svc_http.logs import without_secrets
from svc_http.metrics import Metrics
from svc_http.routing import Routes
from svc_http.streaming import Streams

API_PREFIX = "/api/v1"
_MAX_QUERY_FIELDS = 100
_MAX_KEY = 200
_MAX_COOKIE = 200
_BROWSER = "_browser"
"""Appended to the session cookie's name: the cookie that identifies a browser that has signed in before."""
_BROWSER_SECONDS = 90 * 86_400
_COOKIE_FLAGS = "Path=/; Secure; HttpOnly; SameSite=Strict"
_STREAM_HEADERS: tuple[Header, ...] = ((b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
_TYPES = {
    Presentation.SHELL_SCRIPT: b"text/x-shellscript; charset=utf-8",
    Presentation.FILE: b"application/octet-stream",
}

_FIRST_ERROR_OF_OURS = 500


class App(QuartTrio):
    """`streams.stop()` ends the event streams; `server.serve_https` calls it when the service stops."""

    def __init__(self, api: Api[Any], metrics: Metrics) -> None:
        super().__init__("svc_http", static_folder=None)
        self._api = api
        self.metrics = metrics
        self.streams = api.streams
        self.config["RESPONSE_TIMEOUT"] = None
        self.register_error_handler(HTTPException, self._refused)
        metrics.event_streams.set_function(lambda: len(api.streams))

    async def asgi_app(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        enter_lane(Lane.READING)
        if scope["type"] != "http":
            await super().asgi_app(scope, receive, send)
            return
        began = time.perf_counter()
        exchange = Exchange(scope, receive, send)
        ORIGIN.set(Origin(exchange.request_id))
        try:
            if scope["path"].startswith(API_PREFIX + "/"):
                await self._api.answer(exchange)
            else:
                exchange.operation = "page"
                await super().asgi_app(scope, receive, exchange.observed_send)
        except* (ClientGoneError, trio.TooSlowError):
            # The client has gone, so nobody waits for an answer. The request was executed, or never arrived completely.
            pass
        finally:
            exchange.account(self.metrics, began)

    async def _refused(self, error: HTTPException) -> Response:
        """Quart's refusals outside of the API, in the API's error format."""
        failures = self._api.failures
        if isinstance(error, MethodNotAllowed):
            status, body, headers = wrong_method(", ".join(sorted(error.valid_methods or ())), failures)
        else:
            status, body, headers = no_such_path(failures)
        return Response(body, status, headers={name.decode(): value.decode() for name, value in headers})


def create_app(
    registry: Registry[ServicesT],
    services: ServicesT,
    *,
    authenticator: Authenticator,
    origins: Collection[str],
    metrics: Metrics | None = None,
    tracer: Tracer | None = None,
) -> App:
    """The application that serves `registry`, to browsers that show its pages from one of `origins` (each a scheme, a
    host and, except for 443, a port)."""
    credentials = Credentials(authenticator, cookie=registry.realm.session_cookie, origins=origins)
    return App(Api(registry, services, credentials, tracer), metrics or Metrics())


class Api(Generic[ServicesT]):
    """The operations of a registry, over HTTP."""

    def __init__(
        self,
        registry: Registry[ServicesT],
        services: ServicesT,
        credentials: Credentials,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self.streams = Streams()
        self._registry = registry
        self._services = services
        self._credentials = credentials
        self._cookie = registry.realm.session_cookie
        self.failures = registry.realm.failures
        self._routes = Routes(registry.entries())
        self._document: Callable[[], bytes] = cache(lambda: json.dumps(document(registry), ensure_ascii=False).encode())

    async def answer(self, exchange: Exchange) -> None:
        path, method = exchange.scope["path"][len(API_PREFIX) :], exchange.scope["method"]
        found = self._routes.find(path)
        if found is None:
            await self._answer_besides(exchange, path, method)
            return
        entry = found.entries.get("GET" if method == "HEAD" else method)
        if entry is None or (method == "HEAD" and not _has_a_head(entry.operation)):
            await exchange.respond(*wrong_method(found.allowed, self.failures))
            return
        exchange.operation = entry.operation.name
        if entry.operation.mutates:
            enter_lane(Lane.ORDERS)
        # A stream of events gets no span: it would end with its reader, hours later.
        if self._tracer is None or entry.operation.presentation is Presentation.EVENT_STREAM:
            await self._answer_with(entry, exchange, found.values)
        else:
            with request_span(self._tracer, exchange, entry.operation, API_PREFIX):
                await self._answer_with(entry, exchange, found.values)

    async def _answer_with(self, entry: Entry[ServicesT], exchange: Exchange, values: tuple[str, ...]) -> None:
        effects = Effects()
        reply: Reply | AsyncGenerator[bytes, None]
        try:
            result = await self._perform(entry, exchange, values, effects)
            if entry.operation.presentation is Presentation.EVENT_STREAM:
                reply = await self.streams.open(result)
            else:
                reply = _presented(entry, result, effects)
        except ClientGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - the edge: a defect is logged in full and answered as `internal`
            reply = failure(as_service_error(error), self.failures)
        if isinstance(reply, tuple):
            status, body, headers = reply
            await exchange.respond(status, body, [*headers, *self._cookies(effects)])
        else:
            async with aclosing(reply) as chunks:
                await exchange.stream(200, chunks, _STREAM_HEADERS)

    async def _answer_besides(self, exchange: Exchange, path: str, method: str) -> None:
        if path != "/openapi.json":
            await exchange.respond(*no_such_path(self.failures))
        elif method not in ("GET", "HEAD"):
            await exchange.respond(*wrong_method("GET, HEAD", self.failures))
        else:
            exchange.operation = "openapi"
            await exchange.respond(200, self._document(), [(b"content-type", JSON_TYPE)])

    async def _perform(
        self, entry: Entry[ServicesT], exchange: Exchange, values: tuple[str, ...], effects: Effects
    ) -> Any:
        operation = entry.operation
        principal = await self._credentials.principal(exchange, operation)
        exchange.actor = principal.display
        context = Context(
            principal=principal,
            caller=_caller(principal, exchange, operation.name),
            services=self._services,
            effects=effects,
            response=operation.response,
            user_agent=exchange.header(b"user-agent"),
            browser=self._known_browser(exchange),
            upload=exchange.upload() if operation.upload else None,
        )
        path = dict(zip(entry.reader.in_path, values, strict=True))
        return await self._registry.execute(operation.name, context, _parameters(entry, exchange, path))

    def _known_browser(self, exchange: Exchange) -> str | None:
        cookie = exchange.cookie(self._cookie + _BROWSER)
        return cookie if cookie and len(cookie) <= _MAX_COOKIE else None

    def _cookies(self, effects: Effects) -> list[Header]:
        cookies = []
        if effects.set_session is not None:
            cookies.append(f"{self._cookie}={effects.set_session}")
        elif effects.clear_session:
            cookies.append(f"{self._cookie}=; Max-Age=0")
        if effects.know_browser is not None:
            cookies.append(f"{self._cookie}{_BROWSER}={effects.know_browser}; Max-Age={_BROWSER_SECONDS}")
        return [(b"set-cookie", f"{cookie}; {_COOKIE_FLAGS}".encode()) for cookie in cookies]


def _has_a_head(operation: Operation[Any, Any, Any]) -> bool:
    """Whether HEAD is allowed. Not for event streams, whose body never ends, nor for links that work once: a program
    that only checks such a link must not use it up."""
    return operation.presentation is not Presentation.EVENT_STREAM and not operation.mutates


def _presented(entry: Entry[Any], result: Any, effects: Effects) -> Reply:
    operation = entry.operation
    status = effects.status or entry.status
    if operation.presentation is Presentation.REDIRECT:
        return 303, b"", [(b"location", _inside(result).encode())]
    if operation.presentation is not Presentation.JSON:
        body = result.encode() if isinstance(result, str) else result
        return status, body, [(b"content-type", _TYPES[operation.presentation])]
    answer = entry.rendered(result)
    return (status, b"", []) if answer is None else (status, answer, [(b"content-type", JSON_TYPE)])


def _parameters(entry: Entry[Any], exchange: Exchange, path: Mapping[str, str]) -> Parameters:
    defaults: dict[str, str] = {}
    if (key := exchange.header(b"idempotency-key")) is not None:
        if not 0 < len(key) <= _MAX_KEY:
            raise invalid(f"The header Idempotency-Key must have 1 to {_MAX_KEY} characters.")
        defaults[KEY_FIELD] = key
    position = exchange.header(b"last-event-id")
    if position is not None and entry.operation.presentation is Presentation.EVENT_STREAM:
        defaults["after"] = position

    async def body() -> bytes:
        if entry.operation.upload:
            return b""
        declared = exchange.header(b"content-type")
        if declared is not None and declared.partition(";")[0].strip().lower() != "application/json":
            raise invalid("The body of the request must be JSON, with the header Content-Type: application/json.")
        public = entry.operation.access is Access.PUBLIC
        read = await exchange.body(MAX_PUBLIC_BODY if public else MAX_BODY)
        if read and declared is None:
            raise invalid("A request with a body must have the header Content-Type: application/json.")
        return read

    return Parameters(path=path, query=_query(exchange.scope["query_string"]), body=body, defaults=defaults)


def _query(query_string: bytes) -> list[tuple[str, str]]:
    if not query_string:
        return []
    try:
        return parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError:
        raise invalid(f"The query is not well-formed UTF-8, or has more than {_MAX_QUERY_FIELDS} fields.") from None


def _caller(principal: Principal, exchange: Exchange, operation: str) -> Caller:
    if principal.impersonation_id is not None:
        via = Via.IMPERSONATION
    elif principal.local:
        via = Via.LOCAL
    else:
        via = Via.TOKEN if principal.token_id is not None else Via.SESSION
    return Caller(
        actor_id=principal.user_id,
        actor=principal.display,
        role=principal.role.value if principal.role is not None else "anonymous",
        via=via,
        impersonation_id=principal.impersonation_id,
        impersonator_id=principal.impersonator_id,
        token_id=principal.token_id,
        address=exchange.address,
        request_id=exchange.request_id,
        operation=operation,
    )


def _inside(path: str) -> str:
    """The path of a redirect, which never leads to another host, wherever the path came from."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or any(not "!" <= c <= "~" for c in path):
        return "/"
    return path


# A span has no client address, no query and no header, since these may be confidential. Secrets are removed from paths,
# as in logs.
@contextmanager
def request_span(
    tracer: Tracer, exchange: Exchange, operation: Operation[Any, Any, Any], prefix: str
) -> Iterator[None]:
    """Open a span for the block, which answers `exchange`. The span continues the caller's trace; this service decides
    whether the trace is sampled."""
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
