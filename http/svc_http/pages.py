"""The web pages: the dashboard at `/`, a machine's screen and serial line at `/console/{vm_id}`, their assets.

Invariants: no page has an inline script, and the Content-Security-Policy says so to the browser; a page is asked for
anew each time (with an ETag), an asset never again, for its name changes with its content. The pages do nothing
themselves: they call the API as everybody else does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from quart import Response, request
from quart_trio import QuartTrio

_STATIC = Path(__file__).parent / "static"

_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
_TERMINAL_POLICY = f"{_POLICY}; style-src 'self' 'unsafe-inline'"
"""xterm.js writes the sizes and colours of its cells into style elements; scripts stay the service's own."""

_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_NOT_BUILT = "The pages are not built. Run tools/build-dashboard, then restart the controller. The API works without.\n"


@dataclass(frozen=True)
class _File:
    content: bytes
    compressed: bytes | None
    content_type: str
    etag: str


def add_pages(app: QuartTrio, static: Path = _STATIC) -> None:
    """Serve the pages found in `static`, read once, now."""
    pages = {name: _read(static / f"{name}.html") for name in ("index", "vnc", "terminal")}
    assets = {
        path.name: file
        for path in sorted((static / "assets").glob("*"))
        if path.suffix != ".gz" and (file := _read(path)) is not None
    }

    @app.get("/")
    async def dashboard() -> Response:
        return _page(pages["index"], _POLICY)

    @app.get("/console/<uuid:vm_id>")
    async def console_page(vm_id: UUID) -> Response:
        if request.args.get("kind") == "serial":
            return _page(pages["terminal"], _TERMINAL_POLICY)
        return _page(pages["vnc"], _POLICY)

    @app.get("/assets/<name>")
    async def asset(name: str) -> Response:
        file = assets.get(name)
        if file is None:
            return Response("There is no such file.\n", status=404, content_type="text/plain; charset=utf-8")
        return _respond(file, {"Cache-Control": "public, max-age=31536000, immutable"})


def _page(file: _File | None, policy: str) -> Response:
    if file is None:
        return Response(_NOT_BUILT, status=503, content_type="text/plain; charset=utf-8")
    return _respond(file, {"Cache-Control": "no-cache", "Content-Security-Policy": policy})


def _respond(file: _File, headers: dict[str, str]) -> Response:
    headers = {**headers, "Vary": "Accept-Encoding"}
    compressed = file.compressed if request.accept_encodings.quality("gzip") > 0 else None
    # The two encodings are different representations, so they have different strong tags (RFC 9110, section 8.8.3).
    etag = f'"{file.etag}-gzip"' if compressed is not None else f'"{file.etag}"'
    headers["ETag"] = etag
    if etag.strip('"') in request.if_none_match:
        unchanged = Response(b"", status=304, headers=headers)
        del unchanged.headers["Content-Length"]  # of the file, if of anything (RFC 9110, section 15.4.5)
        return unchanged
    if compressed is not None:
        headers["Content-Encoding"] = "gzip"
    return Response(compressed or file.content, content_type=file.content_type, headers=headers)


def _read(path: Path) -> _File | None:
    if not path.is_file():
        return None
    content = path.read_bytes()
    beside = path.with_name(path.name + ".gz")
    return _File(
        content,
        beside.read_bytes() if beside.is_file() else None,
        _CONTENT_TYPES.get(path.suffix, "application/octet-stream"),
        hashlib.sha256(content).hexdigest()[:32],
    )
