"""Serves built files: compressed for clients that accept gzip, and with 304 for clients that already have the file.

Invariants: a page is requested anew each time (with an ETag), an asset never again, since its name changes with its
content. Files are read once, when the program starts. A file that was built compressed is kept compressed in memory,
since nearly every browser accepts gzip.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STATIC: Final = Path(__file__).parent / "static"
ASSET_CACHE: Final = "public, max-age=31536000, immutable"
PAGE_CACHE: Final = "no-cache"
NOT_BUILT: Final = "The pages are not built. Run tools/build-dashboard, then restart this. The API works without.\n"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
_CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": PLAIN_TEXT,
}


@dataclass(frozen=True)
class StaticAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class StaticFile:
    """`stored` is the content, gzipped if `compressed`."""

    stored: bytes
    compressed: bool
    content_type: str
    etag: str

    def answer(self, accept_encoding: str, if_none_match: str, headers: dict[str, str]) -> StaticAnswer:
        """The answer to a request with these two headers (empty: absent); `headers` are sent with it."""
        as_stored = self.compressed and _takes_gzip(accept_encoding)
        # The two encodings are different representations, so they have different strong tags (RFC 9110, section 8.8.3).
        etag = f'"{self.etag}-gzip"' if as_stored else f'"{self.etag}"'
        headers = {**headers, "Vary": "Accept-Encoding", "ETag": etag}
        if _names(if_none_match, etag):
            return StaticAnswer(304, headers, b"")
        headers["Content-Type"] = self.content_type
        if as_stored:
            headers["Content-Encoding"] = "gzip"
        plain = not self.compressed or as_stored
        return StaticAnswer(200, headers, self.stored if plain else gzip.decompress(self.stored))


def read_file(path: Path) -> StaticFile | None:
    """The file as built; None if it does not exist."""
    if not path.is_file():
        return None
    content, beside = path.read_bytes(), path.with_name(path.name + ".gz")
    compressed = beside.is_file()
    return StaticFile(
        beside.read_bytes() if compressed else content,
        compressed,
        _CONTENT_TYPES.get(path.suffix, "application/octet-stream"),
        hashlib.sha256(content).hexdigest()[:32],
    )


def read_assets(folder: Path) -> dict[str, StaticFile]:
    """The built assets by their names."""
    return {
        path.name: file
        for path in sorted((folder / "assets").glob("*"))
        if path.suffix != ".gz" and (file := read_file(path)) is not None
    }


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether the client accepts gzip (RFC 9110, section 12.5.3): it is named with a weight above 0; `*` stands for
    every encoding that is not named."""
    weights: dict[str, str] = {}
    for choice in accept_encoding.lower().split(","):
        coding, _, given = choice.partition(";")
        weights[coding.strip()] = given.strip().removeprefix("q=")
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and (weight == "" or weight.strip("0.") != "")


def _names(if_none_match: str, etag: str) -> bool:
    """Whether the If-None-Match header contains this ETag (RFC 9110, section 13.1.2), by the weak comparison."""
    return any(each.strip().removeprefix("W/") in (etag, "*") for each in if_none_match.split(","))
