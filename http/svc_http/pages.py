"""The controller's pages: the dashboard at `/`, a machine's screen and serial line at `/console/{vm_id}`, their assets.

Invariants: no page has an inline script, and the Content-Security-Policy says so to the browser. The pages have no
rights of their own: they call the API as any other client does.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from quart import Response, request
from quart_trio import QuartTrio

from svc_http.asgi import PAGE_POLICY
from svc_http.static_files import (
    ASSET_CACHE,
    NOT_BUILT,
    PAGE_CACHE,
    PLAIN_TEXT,
    STATIC,
    StaticFile,
    read_assets,
    read_file,
)

_TERMINAL_POLICY = f"{PAGE_POLICY}; style-src 'self' 'unsafe-inline'"
"""xterm.js writes the sizes and colours of its cells into style elements; scripts stay the service's own."""


def add_pages(app: QuartTrio, static: Path = STATIC / "controller") -> None:
    """Serve the pages found in `static`, read once, now."""
    pages = {name: read_file(static / f"{name}.html") for name in ("index", "vnc", "terminal")}
    assets = read_assets(static)

    @app.get("/")
    async def dashboard() -> Response:
        return _page(pages["index"], PAGE_POLICY)

    @app.get("/console/<uuid:vm_id>")
    async def console_page(vm_id: UUID) -> Response:
        if request.args.get("kind") == "serial":
            return _page(pages["terminal"], _TERMINAL_POLICY)
        return _page(pages["vnc"], PAGE_POLICY)

    @app.get("/assets/<name>")
    async def asset(name: str) -> Response:
        file = assets.get(name)
        if file is None:
            return Response("There is no such file.\n", status=404, content_type=PLAIN_TEXT)
        return _respond(file, {"Cache-Control": ASSET_CACHE})


def _page(file: StaticFile | None, policy: str) -> Response:
    if file is None:
        return Response(NOT_BUILT, status=503, content_type=PLAIN_TEXT)
    return _respond(file, {"Cache-Control": PAGE_CACHE, "Content-Security-Policy": policy})


def _respond(file: StaticFile, headers: dict[str, str]) -> Response:
    asked = request.headers
    answer = file.answer(asked.get("Accept-Encoding", ""), asked.get("If-None-Match", ""), headers)
    response = Response(answer.body, status=answer.status, headers=answer.headers)
    if answer.status == 304:
        del response.headers["Content-Length"]  # a 304 answer has no body (RFC 9110, section 15.4.5)
        response.headers.pop("Content-Type", None)
    return response
