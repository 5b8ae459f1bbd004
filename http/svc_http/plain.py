"""A plain HTTP listener besides the service's own port: it answers ACME challenges (RFC 8555, 8.3), redirects browsers
to HTTPS and serves nothing else. Only the path of a request is used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import quote

import trio
from hypercorn.trio import serve
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response

from svc_actors.acme import CHALLENGE_PATH, Http01
from svc_http import connections
from svc_http.app import App
from svc_http.asgi import lifespan
from svc_http.server import plain_config

NO_CHALLENGE: Final = "No challenge of this service has this token.\n"
"""`svc controller check` recognises the service by this answer."""
AGAIN_SECONDS: Final = 30.0
_TEXT: Final = "text/plain; charset=utf-8"


def add_challenges(app: App, challenges: Http01) -> None:
    """Answer challenges on the service's own port too, for a proxy that passes the path on and for authorities that
    follow a redirect."""

    @app.get(f"{CHALLENGE_PATH}<token>")
    async def challenge(token: str) -> Response:
        proof = challenges.proof(token)
        return Response(proof or NO_CHALLENGE, status=200 if proof else 404, content_type=_TEXT)


def challenge_app(challenges: Http01, public_url: str) -> ASGIFramework:
    """The application for plain HTTP; any request but a challenge is redirected to `public_url`."""
    return partial(_answer, challenges, public_url)


async def serve_plain(app: ASGIFramework, bind: Sequence[str], tell: Callable[[str | None], Awaitable[None]]) -> None:
    """Serve on `bind`, addresses and ports, until cancelled. If an address cannot be bound, this is retried. `tell` is
    called with the problem, and with None once the listener serves."""
    connections.install()
    while True:
        try:
            async with trio.open_nursery() as nursery:
                serving = partial(serve, app, plain_config(bind), shutdown_trigger=trio.sleep_forever, mode="asgi")
                await nursery.start(serving)
                await tell(None)
        except* OSError as errors:
            await tell(f"{' and '.join(bind)} cannot be listened on: {_first(errors)}")
        await trio.sleep(AGAIN_SECONDS)


def _first(errors: BaseExceptionGroup[OSError]) -> str:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return getattr(error, "strerror", None) or str(error)


async def _answer(
    challenges: Http01, public_url: str, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable
) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    if scope["type"] != "http":
        return
    path = scope["path"]
    location = None
    if path.startswith(CHALLENGE_PATH):
        proof = challenges.proof(path.removeprefix(CHALLENGE_PATH))
        status, body = (200, proof) if proof else (404, NO_CHALLENGE)
    elif scope["method"] in ("GET", "HEAD"):
        location = public_url + quote(path)
        status, body = 308, f"This service speaks HTTPS: {location}\n"
    else:
        # A request that sends data is refused instead of redirected: a redirect would hide that the data was readable
        # on the network.
        status, body = 403, f"This service speaks HTTPS: {public_url}\n"
    headers = [(b"content-type", _TEXT.encode()), (b"content-length", str(len(body.encode())).encode())]
    if location is not None:
        headers.append((b"location", location.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    content = b"" if scope["method"] == "HEAD" else body.encode()
    await send({"type": "http.response.body", "body": content, "more_body": False})
