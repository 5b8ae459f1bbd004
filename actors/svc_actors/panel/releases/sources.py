"""Sources of releases: a folder of this server or an HTTPS URL, with `svc-panel.release` and its archive.

Nothing from a source is trusted before the signature is verified. Downloads are limited in size and time.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx
import trio

from svc_actors.panel.releases.manifest import FILE, Archive, ReleaseError

_MOST_LINE: Final = 64 << 10
_PIECE: Final = 1 << 20
_LINE_SECONDS: Final = 30.0
_ARCHIVE_SECONDS: Final = 1800.0
_QUIET_SECONDS: Final = 30.0


class Source(Protocol):
    """Both methods raise `ReleaseError`."""

    async def line(self) -> str | None:
        """The signed manifest of the newest release; None if none is offered."""
        ...

    async def fetch(self, archive: Archive, to: Path) -> None:
        """Write the archive to `to`, replacing that file. When this returns, the file is the signed one."""
        ...


@dataclass(frozen=True)
class FolderSource:
    folder: Path

    async def line(self) -> str | None:
        try:
            async with await trio.open_file(self.folder / FILE, "rb") as file:
                return _text(await file.read(_MOST_LINE + 1))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReleaseError(f"{self.folder / FILE} cannot be read: {error}") from error

    async def fetch(self, archive: Archive, to: Path) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            async with await trio.open_file(self.folder / archive.name, "rb") as file:
                while piece := await file.read(_PIECE):
                    yield piece

        await _take(pieces(), archive, to)


@dataclass(frozen=True)
class HttpsSource:
    """`url` has no slash at its end. Redirects are not followed, and proxies of the environment are not used. `context`
    verifies the server, with the certificate authorities that this system trusts."""

    url: str
    context: ssl.SSLContext

    async def line(self) -> str | None:
        with trio.move_on_after(_LINE_SECONDS):
            async with self._get(FILE) as answer:
                if answer.status_code == httpx.codes.NOT_FOUND:
                    return None
                self._require_ok(answer)
                content = b""
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > _MOST_LINE:
                        break
                return _text(content)
        raise ReleaseError(f"{self.url} took longer than {_LINE_SECONDS:g} seconds")

    async def fetch(self, archive: Archive, to: Path) -> None:
        with trio.move_on_after(_ARCHIVE_SECONDS):
            async with self._get(archive.name) as answer:
                self._require_ok(answer)
                await _take(answer.aiter_bytes(_PIECE), archive, to)
                return
        raise ReleaseError(f"{self.url} took longer than {_ARCHIVE_SECONDS:g} seconds for {archive.name}")

    @asynccontextmanager
    async def _get(self, name: str) -> AsyncIterator[httpx.Response]:
        try:
            async with (
                httpx.AsyncClient(verify=self.context, trust_env=False, timeout=_QUIET_SECONDS) as client,
                client.stream("GET", f"{self.url}/{name}", headers={"Accept-Encoding": "identity"}) as answer,
            ):
                yield answer
        except (httpx.HTTPError, OSError) as error:
            raise ReleaseError(f"{self.url} did not deliver {name}: {error or type(error).__name__}") from error

    def _require_ok(self, answer: httpx.Response) -> None:
        if answer.status_code != httpx.codes.OK:
            raise ReleaseError(f"{answer.request.url} answers {answer.status_code}")


async def _take(pieces: AsyncIterator[bytes], archive: Archive, to: Path) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        async with await trio.open_file(to, "wb") as file:
            async for piece in pieces:
                size += len(piece)
                if size > archive.size:
                    raise ReleaseError(f"{archive.name} is longer than its manifest says")
                digest.update(piece)
                await file.write(piece)
        if digest.hexdigest() != archive.sha256:
            raise ReleaseError(f"{archive.name} is not the file that was signed: its SHA-256 differs")
    except OSError as error:
        raise ReleaseError(f"{archive.name} cannot be fetched: {error}") from error


def _text(content: bytes) -> str:
    try:
        if len(content) > _MOST_LINE:
            raise ReleaseError(f"{FILE} is too long to be one")
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise ReleaseError(f"{FILE} is not a signed manifest") from error
