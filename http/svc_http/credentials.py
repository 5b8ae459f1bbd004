"""Authenticates a request: a bearer token, a session cookie, or nobody; and detects whether a browser was tricked into
sending it.

Invariants:

- if there is an Authorization header, only that counts: a valid cookie does not replace an invalid token;
- a state-changing request that a browser may have sent (it has a cookie, or an Origin) must carry `X-Service-Request:
  1` and an Origin that is this service's own. An Origin of `null` or of another site is refused, and so is a missing
  one if there is a cookie;
- forwarded headers are not trusted: the client's address is that of the connection;
- root of this server, connected to the service's own socket without a credential, is its administrator; with a
  credential, root acts as its owner. A browser's request is never root's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from svc.registry.operation import Method, Operation
from svc.registry.principal import ANONYMOUS, LOCAL_ADMINISTRATOR, Access, Principal
from svc_common.errors import ErrorCode, ServiceError, forbidden, unauthenticated
from svc_http.exchange import Exchange
from svc_http.peers import PEER, PeerKind

GUARD_HEADER = "X-Service-Request"


class Authenticator(Protocol):
    """Finds the caller that a credential belongs to. Each method raises `unauthenticated` for a credential that is
    unknown or has ended, or whose person is suspended."""

    async def by_token(self, token: str) -> Principal: ...
    async def by_session(self, cookie: str) -> Principal: ...


class Credentials:
    """`origins`: the origins of the service's own pages. The Host header does not count as one, since the sender
    chooses it."""

    def __init__(self, authenticator: Authenticator, *, cookie: str, origins: Collection[str]) -> None:
        self._authenticator = authenticator
        self._cookie = cookie
        self._origins = frozenset(origin.lower() for origin in origins)

    async def principal(self, exchange: Exchange, operation: Operation[Any, Any, Any]) -> Principal:
        """The caller whom the request's credential names. Raises `unauthenticated`, and `forbidden` for a request that
        another site may have forged."""
        acts = operation.mutates or operation.route.method is not Method.GET
        public = operation.access is Access.PUBLIC
        if public and not acts:
            return ANONYMOUS
        try:
            return await self._identified(exchange, acts=operation.route.method is not Method.GET)
        except ServiceError as error:
            if public and error.code is ErrorCode.UNAUTHENTICATED:
                return ANONYMOUS
            raise

    async def _identified(self, exchange: Exchange, *, acts: bool) -> Principal:
        authorization = exchange.header(b"authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer" or not token.strip():
                raise unauthenticated("The Authorization header must read: Bearer <token>.")
            return await self._authenticator.by_token(token.strip())
        cookie = exchange.cookie(self._cookie)
        if acts and (cookie is not None or exchange.header(b"origin") is not None):
            self._refuse_forgery(exchange)
        if cookie is None:
            peer = PEER.get()
            return LOCAL_ADMINISTRATOR if peer is not None and peer.kind is PeerKind.ROOT else ANONYMOUS
        return await self._authenticator.by_session(cookie)

    def _refuse_forgery(self, exchange: Exchange) -> None:
        origin = exchange.header(b"origin")
        if origin is None or origin.lower() not in self._origins:
            raise forbidden(
                "The request does not come from this service's own pages: its Origin is missing or foreign.",
                hint="From a program, use a token: Authorization: Bearer <token>. In a browser, use an address "
                "that the service was started with (--public-host, --origin).",
            )
        if exchange.header(GUARD_HEADER.lower().encode()) != "1":
            raise forbidden(f"A request that changes something must carry the header {GUARD_HEADER}: 1.")
