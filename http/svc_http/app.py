"""The Quart-Trio application of a registry: every operation at its route below /api/v1, and nothing besides the
document.

A request goes straight down: route, credentials, registry (all checks, then the handler), response model, bytes.
Pages and websockets are added to the application by whoever composes the service.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Generic
from urllib.parse import parse_qsl

from quart import Request, Response, request
from quart.typing import ResponseReturnValue
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from svc.registry.idempotency import KEY_FIELD
from svc.registry.openapi import document
from svc.registry.operation import Context, Effects, Presentation, ServicesT
from svc.registry.parameters import Parameters
from svc.registry.principal import Principal
from svc.registry.registry import Entry, Registry
from svc.registry.streaming import EventStream
from svc_actors.errors import invalid
from svc_actors.store import Caller, Via
from svc_http.credentials import Authenticator, Credentials
from svc_http.errors import as_service_error, failure, refusal_of_http
from svc_http.metrics import Metrics
from svc_http.streaming import EventStreamBody, Streams
from svc_http.wire import JSON_TYPE, Connection, Exchange, exchange_of

API_PREFIX = "/api/v1"
_MAX_QUERY_FIELDS = 100
_MAX_KEY = 200


class App(QuartTrio):
    """`streams.stop()` ends the event streams; `server.serve_https` calls it when the service stops."""

    asgi_http_class = Connection

    def __init__(self, *, metrics: Metrics) -> None:
        super().__init__("svc_http", static_folder=None)
        self.metrics = metrics
        self.streams = Streams()
        self.url_map.merge_slashes = False
        self.config["RESPONSE_TIMEOUT"] = None
        metrics.event_streams.set_function(lambda: len(self.streams))


def create_app(
    registry: Registry[ServicesT],
    services: ServicesT,
    *,
    authenticator: Authenticator,
    public_url: str,
    session_cookie: str = "svcvm_session",
    metrics: Metrics | None = None,
) -> App:
    """The application that serves `registry` for `public_url` (an origin: scheme, host, port)."""
    app = App(metrics=metrics or Metrics())
    credentials = Credentials(authenticator, cookie=session_cookie, public_url=public_url)
    endpoint = _Endpoints(registry, services, credentials, app.streams, session_cookie)
    for entry in registry.entries():
        route = entry.operation.route
        app.add_url_rule(
            API_PREFIX + route.path.replace("{", "<").replace("}", ">"),
            endpoint=entry.operation.name,
            view_func=endpoint.view(entry),
            methods=[route.method.value],
            provide_automatic_options=False,
        )

    @cache
    def described() -> bytes:
        return json.dumps(document(registry, session_cookie=session_cookie), ensure_ascii=False).encode()

    async def openapi() -> Response:
        exchange_of(request.scope).operation = "openapi"
        return Response(described(), content_type=JSON_TYPE)

    async def refused(error: HTTPException) -> Response:
        return refusal_of_http(error)

    async def broken(error: Exception) -> Response:
        request_id = exchange_of(request.scope).request_id
        return failure(as_service_error(error, request_id))

    app.add_url_rule(f"{API_PREFIX}/openapi.json", view_func=openapi, provide_automatic_options=False)
    app.register_error_handler(HTTPException, refused)
    app.register_error_handler(Exception, broken)
    return app


class _Endpoints(Generic[ServicesT]):
    """The view functions of a registry's operations."""

    def __init__(
        self,
        registry: Registry[ServicesT],
        services: ServicesT,
        credentials: Credentials,
        streams: Streams,
        session_cookie: str,
    ) -> None:
        self._registry = registry
        self._services = services
        self._credentials = credentials
        self._streams = streams
        self._cookie = session_cookie

    def view(self, entry: Entry[ServicesT]) -> Callable[..., Awaitable[ResponseReturnValue]]:
        async def answer(**path: str) -> ResponseReturnValue:
            asked: Request = request._get_current_object()  # type: ignore[attr-defined]
            exchange = exchange_of(asked.scope)
            exchange.operation = entry.operation.name
            effects = Effects()
            try:
                response = await self._perform(entry, asked, exchange, path, effects)
            except HTTPException:
                raise
            except Exception as error:  # noqa: BLE001 - the edge: a defect is logged whole and answered as `internal`
                response = failure(as_service_error(error, exchange.request_id))
            self._apply(effects, response)
            return response

        return answer

    async def _perform(
        self, entry: Entry[ServicesT], asked: Request, exchange: Exchange, path: Mapping[str, str], effects: Effects
    ) -> Response:
        operation = entry.operation
        principal = await self._credentials.principal(asked, operation)
        exchange.actor = principal.display
        context = Context(
            principal=principal,
            caller=_caller(principal, asked, exchange, operation.name),
            services=self._services,
            effects=effects,
            response=operation.response,
            user_agent=asked.headers.get("User-Agent"),
            upload=exchange.body.chunks() if operation.upload else None,
        )
        result = await self._registry.execute(operation.name, context, _parameters(entry, asked, path))
        return await self._presented(entry, result, effects)

    async def _presented(self, entry: Entry[ServicesT], result: Any, effects: Effects) -> Response:
        operation = entry.operation
        status = effects.status or operation.status
        match operation.presentation:
            case Presentation.JSON:
                if operation.response is None:
                    return Response(b"", status=status)
                return Response(entry.response.dump_json(result), status=status, content_type=JSON_TYPE)
            case Presentation.SHELL_SCRIPT:
                return Response(result, status=status, content_type="text/x-shellscript; charset=utf-8")
            case Presentation.FILE:
                return Response(result, status=status, content_type="application/octet-stream")
            case Presentation.REDIRECT:
                return Response(b"", status=303, headers={"Location": _inside(result)})
            case Presentation.EVENT_STREAM:
                return await self._stream(result)

    async def _stream(self, stream: EventStream) -> Response:
        body = EventStreamBody(stream, await stream.visibility(), self._streams)
        response = Response(content_type="text/event-stream")
        response.response = body
        response.headers.pop("Content-Length", None)
        response.headers["X-Accel-Buffering"] = "no"
        response.timeout = None
        return response

    def _apply(self, effects: Effects, response: Response) -> None:
        if effects.set_session is not None:
            response.set_cookie(
                self._cookie, effects.set_session, secure=True, httponly=True, samesite="Strict", path="/"
            )
        elif effects.clear_session:
            response.delete_cookie(self._cookie, secure=True, httponly=True, samesite="Strict", path="/")


def _parameters(entry: Entry[Any], asked: Request, path: Mapping[str, str]) -> Parameters:
    defaults: dict[str, str] = {}
    if (key := asked.headers.get("Idempotency-Key")) is not None:
        if not 0 < len(key) <= _MAX_KEY:
            raise invalid(f"the header Idempotency-Key holds 1 to {_MAX_KEY} characters")
        defaults[KEY_FIELD] = key
    position = asked.headers.get("Last-Event-ID")
    if position is not None and entry.operation.presentation is Presentation.EVENT_STREAM:
        defaults["after"] = position

    async def body() -> bytes:
        if entry.operation.upload:
            return b""
        declared = asked.headers.get("Content-Type")
        if declared is not None and asked.mimetype != JSON_TYPE:
            raise invalid(f"the body of a request is {JSON_TYPE}, not {asked.mimetype or 'unnamed'}")
        read = await exchange_of(asked.scope).body.read()
        if read and declared is None:
            raise invalid(f"a request with a body carries the header Content-Type: {JSON_TYPE}")
        return read

    return Parameters(path=path, query=_query(asked) if entry.reader.in_query else (), body=body, defaults=defaults)


def _query(asked: Request) -> list[tuple[str, str]]:
    if not asked.query_string:
        return []
    try:
        return parse_qsl(
            asked.query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_QUERY_FIELDS,
        )
    except ValueError:
        raise invalid(f"the query is not well-formed UTF-8, or has more than {_MAX_QUERY_FIELDS} fields") from None


def _caller(principal: Principal, asked: Request, exchange: Exchange, operation: str) -> Caller:
    if principal.impersonation_id is not None:
        via = Via.IMPERSONATION
    else:
        via = Via.TOKEN if principal.token_id is not None else Via.SESSION
    peer = asked.scope.get("client")
    return Caller(
        actor_id=principal.user_id,
        actor=principal.display,
        role=principal.role.value if principal.role is not None else "anonymous",
        via=via,
        impersonation_id=principal.impersonation_id,
        impersonator_id=principal.impersonator_id,
        token_id=principal.token_id,
        address=peer[0] if peer else None,
        request_id=exchange.request_id,
        operation=operation,
    )


def _inside(path: str) -> str:
    """A redirect stays inside this service, whatever made the path."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or any(ord(c) < 0x21 for c in path):
        return "/"
    return path
