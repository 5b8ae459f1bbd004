"""Uploads a file of this computer to a site, or an archive to be imported, in parts that may arrive in any order
(docs/files.md, docs/imports.md).

An interrupted upload resumes: the service keeps the parts of an unfinished upload for a day, and an unfinished upload
with the same path and size is assumed to be of the same file. If it was of another file, the hash of the whole shows
that before the file is put in place.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import trio

from svc.cli.failures import Exit, Failure, first_cause
from svc.cli.terminal import say
from svc.cli.transfer import Bar

if TYPE_CHECKING:
    from svc.cli.client import Client

AT_ONCE: Final = 3


async def upload(client: Client, site: str, file: Path, path: str, *, replace: bool) -> Any:
    """Send `file` to `path` of the site with this id; a path that ends in a slash is a folder, in which the file keeps
    its name. Returns the service's answer about the finished upload."""
    place = path + file.name if path.endswith("/") else path
    try:
        with file.open("rb") as opened:
            size = _size(opened, file)
            began = await _begun(client, site, place, size, replace)
            parts = f"/sites/{site}/files/upload/{began['id']}"
            digest = await _send(client, parts, opened, began, Bar(f"uploading {file.name}", size))
    except OSError as error:
        raise Failure(Exit.INVALID, f"{file} cannot be read: {error.strerror}") from error
    finished = await _finish(client, parts, parts, digest)
    say(f"{place}: {size:,} bytes")
    return finished


async def upload_archive(client: Client, file: Path, owner_email: str | None) -> Any:
    """Send an archive of another host, which the service then reads. Returns the import."""
    try:
        with file.open("rb") as opened:
            size = _size(opened, file)
            began = await _begun_archive(client, file.name, size, owner_email)
            path = f"/imports/{began['id']}"
            digest = await _send(client, f"{path}/upload", opened, began, Bar(f"uploading {file.name}", size))
    except OSError as error:
        raise Failure(Exit.INVALID, f"{file} cannot be read: {error.strerror}") from error
    finished = await _finish(client, f"{path}/upload", path, digest)
    say(f"{file.name}: {size:,} bytes; `svc job watch {finished['job_id']}` follows how it is read")
    return finished


def _size(opened: BinaryIO, file: Path) -> int:
    status = os.fstat(opened.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise Failure(Exit.INVALID, f"{file} is not a file", "a folder is packed, uploaded, and extracted there")
    return status.st_size


async def _begun(client: Client, site: str, place: str, size: int, replace: bool) -> dict[str, Any]:
    """The interrupted upload of this file, or a new one."""
    wanted = {"path": place, "size": size, "replace": replace}
    for known in await client.call("GET", f"/sites/{site}/files/upload"):
        if known["status"] == "open" and {name: known[name] for name in wanted} == wanted:
            return dict(known)
    return dict(await client.call("POST", f"/sites/{site}/files/upload", body=wanted))


async def _begun_archive(client: Client, name: str, size: int, owner_email: str | None) -> dict[str, Any]:
    """The interrupted upload of this archive, or a new one."""
    for known in (await client.call("GET", "/imports?status=uploading"))["items"]:
        if (known["name"], known["size"]) == (name, size):
            return dict(known)
    owner = {} if owner_email is None else {"owner_email": owner_email}
    return dict(await client.call("POST", "/imports/upload", body={"name": name, "size": size, **owner}))


async def _send(client: Client, parts: str, opened: BinaryIO, began: dict[str, Any], bar: Bar) -> str:
    """Send the missing parts, several at once, and return the SHA-256 of the whole file."""
    put = partial(client.call, "PUT", parts)
    received = [(there["start"], there["end"]) for there in began["received"]]
    digest, offset, free = hashlib.sha256(), 0, trio.Semaphore(AT_ONCE)

    async def send(offset: int, data: bytes) -> None:
        try:
            await put(body={"offset": offset, "data_base64": base64.b64encode(data).decode()})
        except Failure as failure:
            if failure.exit_code == Exit.UNAVAILABLE:
                failure.hint = "run the command again: it resumes the upload"
            raise
        bar.advance(len(data))
        free.release()

    try:
        with bar:
            async with trio.open_nursery() as nursery:
                while data := opened.read(began["chunk_bytes"]):
                    digest.update(data)
                    if any(start <= offset and offset + len(data) <= end for start, end in received):
                        bar.advance(len(data))
                    else:
                        await free.acquire()
                        nursery.start_soon(send, offset, data)
                    offset += len(data)
    except BaseExceptionGroup as errors:
        raise first_cause(errors) from errors
    return digest.hexdigest()


async def _finish(client: Client, parts: str, whole: str, digest: str) -> Any:
    try:
        return await client.call("POST", f"{parts}/finish", body={"sha256": digest})
    except Failure as failure:
        if failure.exit_code != Exit.INVALID:
            raise
        # The parts that were sent earlier belong to another file, or this file has changed since. So all parts are
        # discarded.
        await client.call("DELETE", whole)
        raise Failure(
            Exit.CONFLICT, "the unfinished upload is of a different file; nothing was changed", "try again"
        ) from None
