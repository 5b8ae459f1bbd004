"""Files that the API serves in parts: fetched one after the other, verified by their hashes, and joined.

An interrupted download resumes where it ended: the partial file lies next to the target, under a name that contains the
version, so that parts of two versions never mix. The target itself is either complete or absent.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from svc.cli.failures import Exit, Failure
from svc.cli.terminal import say
from svc.cli.transfer import Bar

if TYPE_CHECKING:
    from svc.cli.client import Client

PART_BYTES: Final = 1 << 20
STANDARD_OUTPUT: Final = Path("-")
_UNFIT: Final = re.compile(r"[^\w.@+-]+")
_DAMAGED: Final = "a part of the file arrived incomplete"


@dataclass(frozen=True)
class _Part:
    data: bytes
    size: int
    version: str
    name: str
    whole_sha256: str | None


async def download(client: Client, path: str, query: Mapping[str, Any], to: Path | None) -> None:
    """Download a file to `to`, or into that folder under its own name. Nothing is overwritten."""
    if to == STANDARD_OUTPUT and sys.stdout.isatty():
        raise Failure(
            Exit.INVALID, "the file would be written to the terminal; nothing was fetched", "give -o FILE, or a pipe"
        )
    first = await _fetch(client, path, query, 0)
    if to == STANDARD_OUTPUT:
        await _print(client, path, query, first)
        return
    where = to or Path(_file_name(first.name))
    if to is None and where.exists():
        raise Failure(Exit.CONFLICT, f"{where} already exists", "give another name with -o FILE")
    unfinished = where.with_name(f".{where.name}.{hashlib.sha256(first.version.encode()).hexdigest()[:16]}.part")
    try:
        _forget_other_versions(where, unfinished)
        await _complete(client, path, query, first, unfinished)
        digest = _compared(unfinished, first)
        os.replace(unfinished, where)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{where} cannot be written: {error.strerror}") from error
    say(f"{where}: {first.size:,} bytes, SHA-256 {digest}")


async def _complete(client: Client, path: str, query: Mapping[str, Any], first: _Part, unfinished: Path) -> None:
    there = _length(unfinished)
    if there > first.size:
        there = 0
    with Bar(f"downloading {first.name}", first.size) as bar, unfinished.open("ab") as file:
        file.truncate(there)
        bar.advance(there)
        while there < first.size:
            part = first if there == 0 else await _fetch(client, path, query, there)
            if part.version != first.version:
                raise Failure(Exit.CONFLICT, "the file has changed since the download started", "start again")
            if not part.data:
                raise Failure(Exit.FAILED, _DAMAGED, "run the command again: it resumes the download")
            file.write(part.data)
            there += len(part.data)
            bar.advance(len(part.data))
        file.flush()
        os.fsync(file.fileno())


async def _print(client: Client, path: str, query: Mapping[str, Any], first: _Part) -> None:
    part, there = first, 0
    while True:
        sys.stdout.buffer.write(part.data)
        there += len(part.data)
        if there >= first.size:
            sys.stdout.buffer.flush()
            return
        part = await _fetch(client, path, query, there)
        if part.version != first.version or not part.data:
            raise Failure(Exit.CONFLICT, "the file has changed since the download started", "start again")


async def _fetch(client: Client, path: str, query: Mapping[str, Any], offset: int) -> _Part:
    """Fetch one part. Raises `Failure` if it does not match its hash."""
    answer = await client.call("GET", path, query={**query, "offset": offset, "limit": PART_BYTES})
    try:
        data = base64.b64decode(answer["data_base64"], validate=True)
    except binascii.Error as error:
        raise Failure(Exit.FAILED, _DAMAGED) from error
    if hashlib.sha256(data).hexdigest() != answer["sha256"]:
        raise Failure(Exit.FAILED, _DAMAGED, "run the command again: it resumes the download")
    return _Part(data, answer["size"], answer["version"], answer["name"], answer["whole_sha256"])


def _compared(file: Path, first: _Part) -> str:
    """The digest of the whole file. Raises `Failure` if the service reports another digest."""
    with file.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if first.whole_sha256 is not None and found != first.whole_sha256:
        file.unlink()
        raise Failure(
            Exit.FAILED, "the downloaded file differs from the stored one (SHA-256); it was discarded", "try again"
        )
    return found


def _forget_other_versions(where: Path, unfinished: Path) -> None:
    """Remove partial files of other versions, which are of no use."""
    for other in where.parent.iterdir():
        ours = other.name.startswith(f".{where.name}.") and other.name.endswith(".part")
        if ours and other != unfinished and re.fullmatch(r"[0-9a-f]{16}", other.name[len(where.name) + 2 : -5]):
            other.unlink(missing_ok=True)


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _file_name(name: str) -> str:
    """A safe name for the downloaded file. The service may give it any name, so everything that could make it a path is
    removed."""
    return _UNFIT.sub("_", name).lstrip(".") or "download"
