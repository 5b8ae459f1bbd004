"""The image cache: files named by their digest, verified before their first use, shared read-only by the disks on them.

    images/<algorithm>-<digest>.<format>            the file, mode 0444
    images/<algorithm>-<digest>.<format>.partial    a download under way or interrupted
    images/<algorithm>-<digest>.<format>.boot/      the unpacked content of a rescue system's file
    images/<image_id>.json                          which file an image id means, and what was seen when it was verified

Invariants:

- a file that has its final name had the publisher's digest when it was renamed to that name, and its header names no
  other file;
- before each use the file's size and modification time are compared with those recorded when the file was verified; if
  they differ, the file is verified again;
- an interrupted download resumes where it stopped; if one file is pulled several times at once, the others wait for the
  first pull, and then find the file there;
- if the disk runs short, images that no disk is based on and nobody requested within the hour are removed, the one
  requested longest ago first;
- a download is limited to its declared size, to the size that any image may have, and to what leaves the host enough
  room. A download that exceeds a limit is ended, and its partial file is removed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

import httpx
import trio
from pydantic import BaseModel, ConfigDict, ValidationError

from svc_nodeagent.calls import host_call
from svc_nodeagent.durable import PARTIAL_SUFFIX, write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import Folders, in_thread, put_in_place
from svc_nodeagent.hypervisor.qcow2 import image_fault
from svc_nodeagent.protocol import CachedImage, ControllerSource, FailureCode, ImageFormat, ImageSpec

CHUNK_BYTES = 1024 * 1024
UNPACKED_SUFFIX = ".boot"
"""The suffix of the folder with a rescue system's unpacked file (`rescued`)."""
_TOLD_EVERY_SECONDS = 3.0
"""Seconds between two lines of progress: each is a row of the task's log, and a line on the screen of a user who
waits."""
SILENCE_TIMEOUT_SECONDS = 60.0
FREE_SPACE_KEPT_BYTES = 512 * 1024 * 1024
MOST_IMAGE_BYTES = 64 * 1024**3
"""The limit for images without a declared size. Linux images have less than 5 GiB, Windows images about 20."""
_LOOKED_AT_EVERY = 256 * 1024 * 1024
"""Bytes between two checks of the free space, because others write to the disk, too."""


_FLOOR_BYTES = 2 * 1024**3
"""Bytes that always stay free, whatever a node receives. This is not a share of the disk: the share from which on
nothing is placed on a node is a setting of the controller, and a fiftieth of a large disk is room for many machines."""
_SHORT_BELOW_SHARE, _SHORT_BELOW_BYTES = 0.1, 4 * 1024**3
"""A share of the file system, and bytes: if less than either is free, the cache makes room. This happens before the
controller considers the node's disk critical, and long before guests run out of space."""
_KEPT_SECONDS = 3600.0
"""How long an image is kept after a request: the machine that needs it may not have arrived yet."""


class _TooLarge(Exception):  # noqa: N818 - named for what it says
    """The download exceeds the image's limit; `most` in bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"more than {most} bytes")
        self.most = most


class _Index(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    image: CachedImage
    file: str
    size: int
    changed_ns: int


class _Reader(Protocol):
    """An open download. `offset`: the position in the file of the next bytes."""

    offset: int
    total: int | None

    def chunks(self) -> AsyncIterator[bytes]: ...


class ImageCache:
    def __init__(
        self,
        folders: Folders,
        open_stream: OpenStream,
        *,
        open_client: Callable[[], httpx.AsyncClient],
    ) -> None:
        self._folders = folders
        self._open_stream = open_stream
        self._open_client = open_client
        self._locks: dict[str, trio.Lock] = {}

    async def ensure(self, spec: ImageSpec, report: Report) -> CachedImage:
        """Make sure that the image is in the cache, verified. `report` gets percentages of the download."""
        name = file_name(spec)
        async with self._lock(name, report):
            index = await in_thread(self._read_index, spec.image_id)
            path = self._folders.images / name
            if index is not None and index.file == name and await in_thread(_unchanged, path, index):
                await in_thread(os.utime, self._index_path(spec.image_id))
                return index.image
            if await in_thread(path.exists):
                await report(0, f"verifying image {spec.name}")
                if not await self._has_digest(path, spec):
                    raise HostError(
                        FailureCode.HOST,
                        f"The cached file of image {spec.name} no longer has the publisher's {spec.digest_algorithm}.",
                        f"Machines on it are at risk. Check the node's disk; remove {path} to have it fetched anew.",
                    )
            else:
                await self._fetch(spec, path, report)
                fault_point("image.in_place")
            return await in_thread(self._write_index, spec, path)

    def base_of(self, file: str) -> BaseImage:
        """The cached image file with the name that a record has."""
        return BaseImage(self._folders.images / file, file.rpartition(".")[2])

    async def remove(self, image_id: UUID) -> None:
        """Forget the image, and remove its file unless another image id refers to it too. Raises `HostError(conflict)`
        while disks are based on it."""
        index = await in_thread(self._read_index, image_id)
        if index is None:
            return
        async with self._lock(index.file, None):
            others = [other for other in await in_thread(self._indexes) if other.image.image_id != image_id]
            shared = any(other.file == index.file for other in others)
            if not shared:
                users = (await in_thread(self._folders.bases_in_use)).get(index.file, 0)
                if users:
                    raise HostError(
                        FailureCode.CONFLICT,
                        f"Machines on this node, or their retained disks, stand on this image: {users}.",
                        "Delete the machines made from it, and their retained disks, first.",
                    )
                path = self._folders.images / index.file
                await in_thread(path.unlink, missing_ok=True)
                await in_thread(shutil.rmtree, path.with_name(path.name + UNPACKED_SUFFIX), ignore_errors=True)
                await in_thread(path.with_name(path.name + PARTIAL_SUFFIX).unlink, missing_ok=True)
            await in_thread(self._index_path(image_id).unlink, missing_ok=True)

    async def make_room(self) -> list[UUID]:
        """Remove images while the disk is nearly full, those requested longest ago first; returns the removed ones."""
        removed: list[UUID] = []
        for image_id in await in_thread(self._long_unused):
            if not await in_thread(is_short, self._folders.images):
                break
            with suppress(HostError):  # machines are based on it
                await self.remove(image_id)
                removed.append(image_id)
        return removed

    def _long_unused(self) -> list[UUID]:
        """The images in the order of their last request, which is the modification time of their index file; without
        the images that were requested within the last hour."""
        asked = {
            index.image.image_id: self._index_path(index.image.image_id).stat().st_mtime for index in self._indexes()
        }
        before = time.time() - _KEPT_SECONDS
        return sorted((image_id for image_id, when in asked.items() if when < before), key=asked.__getitem__)

    async def cached(self) -> tuple[CachedImage, ...]:
        return tuple(index.image for index in await in_thread(self._indexes))

    @asynccontextmanager
    async def _lock(self, name: str, report: Report | None) -> AsyncIterator[None]:
        lock = self._locks.setdefault(name, trio.Lock())
        if lock.locked() and report is not None:
            await report(0, "waiting for another pull of the same image")
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(name, None)

    async def _fetch(self, spec: ImageSpec, path: Path, report: Report) -> None:
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        resumed = await in_thread(_size, partial) > 0
        try:
            digest = await self._download(spec, partial, report)
        except _TooLarge as error:
            await in_thread(partial.unlink, missing_ok=True)
            raise HostError(
                FailureCode.INVALID,
                f"The file of image {spec.name} is larger than the {error.most // 2**20} MiB that it may have. "
                "It was discarded.",
                "Check the address and the size of the image.",
            ) from error
        if digest != spec.digest and resumed:
            # The partial file may have been of another image. So the image is downloaded again from the start: only a
            # complete download with a wrong digest proves that the source is wrong.
            await in_thread(partial.unlink)
            digest = await self._download(spec, partial, report)
        if digest != spec.digest:
            await in_thread(partial.unlink)
            raise HostError(
                FailureCode.INVALID,
                f"The file fetched for image {spec.name} has {spec.digest_algorithm} {digest[:16]}…; "
                f"its publisher states {spec.digest[:16]}…. It was discarded.",
                "Refresh the image catalogue, or correct the digest of the custom image.",
            )
        await self._refuse_unfit(spec, partial)
        fault_point("image.verified")
        await in_thread(put_in_place, partial, path, mode=0o444)

    async def _download(self, spec: ImageSpec, partial: Path, report: Report) -> str:
        """Fetch what is missing to `partial`; returns the digest of the whole file."""
        hasher = hashlib.new(spec.digest_algorithm)
        have = await in_thread(_hash_file, partial, hasher)
        async with AsyncExitStack() as stack:
            stack.enter_context(host_call("download image"))
            try:
                reader: _Reader = await stack.enter_async_context(self._source(spec, have))
                if reader.offset != have:
                    hasher, have = hashlib.new(spec.digest_algorithm), 0
                most = spec.size_bytes or MOST_IMAGE_BYTES
                total = reader.total or spec.size_bytes
                if total is not None and total > most:
                    raise _TooLarge(most)
                await in_thread(_refuse_when_full, partial.parent, (total or 0) - have, spec.name)
                look_at = have + _LOOKED_AT_EVERY
                descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600)
                stack.callback(os.close, descriptor)
                os.ftruncate(descriptor, have)
                next_line = trio.current_time()
                async for chunk in reader.chunks():
                    if have + len(chunk) > most:
                        raise _TooLarge(most)
                    await in_thread(_append, descriptor, hasher, chunk, have)
                    have += len(chunk)
                    if have >= look_at:
                        look_at += _LOOKED_AT_EVERY
                        await in_thread(_refuse_when_full, partial.parent, 0, spec.name)
                    if trio.current_time() >= next_line:
                        next_line = trio.current_time() + _TOLD_EVERY_SECONDS
                        percent = min(99, have * 100 // total) if total else 0
                        await report(percent, f"fetching image {spec.name}: {have // 2**20} MiB")
            except (httpx.HTTPError, httpx.InvalidURL, OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
                raise _fetch_failed(spec, error) from error
        return hasher.hexdigest()

    @asynccontextmanager
    async def _source(self, spec: ImageSpec, have: int) -> AsyncIterator[_Reader]:
        if isinstance(spec.source, ControllerSource):
            with trio.fail_after(SILENCE_TIMEOUT_SECONDS):
                stream = await self._open_stream(spec.source.token)
            async with stream:
                yield _StreamReader(stream)
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        url = str(spec.source.url)
        async with self._open_client() as client, client.stream("GET", url, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                # Nothing is left to fetch: the file is either complete or another file. The digest shows which.
                yield _Nothing(have)
                return
            if not response.is_success:
                # Our own text: httpx's would include the address, whose credentials must not get into a task's log.
                raise httpx.RequestError(f"the server answered {response.status_code} {response.reason_phrase}")
            yield _HttpReader(response, have)

    async def _has_digest(self, path: Path, spec: ImageSpec) -> bool:
        hasher = hashlib.new(spec.digest_algorithm)
        await in_thread(_hash_file, path, hasher)
        return hasher.hexdigest() == spec.digest

    async def _refuse_unfit(self, spec: ImageSpec, path: Path) -> None:
        """Refuse an image whose header names other files of this host as the disk's content: such an image is never
        used."""
        if spec.format is ImageFormat.RAW:
            return
        try:
            complaint = await in_thread(image_fault, path)
            if complaint is None:
                info = await inspect(path, spec.format.value)
                if info.refers_to:
                    complaint = "it refers to other files"
                elif info.encrypted:
                    complaint = "it is encrypted"
        except HostError as error:
            complaint = f"qemu-img cannot read it as {spec.format.value} ({error.message})"
        if complaint is not None:
            await in_thread(path.unlink)
            raise HostError(
                FailureCode.INVALID, f"Image {spec.name} was refused: {complaint}.", "Give a plain disk image."
            )

    def _index_path(self, image_id: UUID) -> Path:
        return self._folders.images / f"{image_id}.json"

    def _read_index(self, image_id: UUID) -> _Index | None:
        return _parse_index(self._index_path(image_id))

    def _indexes(self) -> list[_Index]:
        parsed = (_parse_index(path) for path in sorted(self._folders.images.glob("*.json")))
        return [index for index in parsed if index is not None and (self._folders.images / index.file).exists()]

    def _write_index(self, spec: ImageSpec, path: Path) -> CachedImage:
        status = path.stat()
        image = CachedImage(
            image_id=spec.image_id,
            format=spec.format,
            size_bytes=status.st_size,
            digest=spec.digest,
            pulled_at=datetime.now(UTC),
        )
        index = _Index(image=image, file=path.name, size=status.st_size, changed_ns=status.st_mtime_ns)
        write_whole(self._index_path(spec.image_id), index.model_dump_json().encode(), mode=0o644)
        return image


def file_name(spec: ImageSpec) -> str:
    return f"{spec.digest_algorithm}-{spec.digest}.{spec.format.value}"


class _HttpReader:
    def __init__(self, response: httpx.Response, wanted: int) -> None:
        self._response = response
        self.offset = wanted if response.status_code == httpx.codes.PARTIAL_CONTENT else 0
        length = response.headers.get("Content-Length")
        self.total = self.offset + int(length) if length is not None else None

    def chunks(self) -> AsyncIterator[bytes]:
        # not in chunks of a fixed size: data that waits for a full chunk is lost if the connection breaks
        return self._response.aiter_bytes()


class _StreamReader:
    """Reads a file that the controller keeps. The stream always starts at the beginning of the file and ends with the
    file."""

    offset = 0
    total: int | None = None

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            with trio.fail_after(SILENCE_TIMEOUT_SECONDS):
                chunk = await self._stream.receive_some(CHUNK_BYTES)
            if not chunk:
                return
            yield bytes(chunk)


class _Nothing:
    total: int | None = None

    def __init__(self, offset: int) -> None:
        self.offset = offset

    async def chunks(self) -> AsyncIterator[bytes]:
        return
        yield b""


def _parse_index(path: Path) -> _Index | None:
    try:
        return _Index.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None  # without an index the file is verified again, and the index is written anew


def _unchanged(path: Path, index: _Index) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (index.size, index.changed_ns)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class _Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _hash_file(path: Path, hasher: _Hasher) -> int:
    """Feed the file to the hasher; returns its size, 0 if there is none."""
    size = 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(4 * CHUNK_BYTES):
                hasher.update(chunk)
                size += len(chunk)
    except FileNotFoundError:
        return 0
    return size


def _append(descriptor: int, hasher: _Hasher, chunk: bytes, offset: int) -> None:
    hasher.update(chunk)
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def is_short(folder: Path) -> bool:
    filesystem = os.statvfs(folder)
    free, size = filesystem.f_bavail * filesystem.f_frsize, filesystem.f_blocks * filesystem.f_frsize
    return free < max(_SHORT_BELOW_BYTES, size * _SHORT_BELOW_SHARE)


def is_nearly_full(folder: Path, to_come: int = 0) -> bool:
    """Whether the file system would have less than the floor left after so many more bytes."""
    filesystem = os.statvfs(folder)
    return filesystem.f_bavail * filesystem.f_frsize < _FLOOR_BYTES + to_come


async def require_room(folder: Path, what: str, to_come: int = 0) -> None:
    """Require that the file system has enough room. Called repeatedly while data is written whose size another party
    declared; `to_come`: bytes of it that are certain to follow. Raises `HostError(capacity)` if the file system is
    nearly full, before guests find it full."""
    if await in_thread(is_nearly_full, folder, to_come):
        raise HostError(
            FailureCode.CAPACITY,
            f"The node ran short of disk space while it received {what}; nothing of it was kept, and the machine is "
            "where it was.",
            "Free disk space on the node, or choose another.",
        )


def _refuse_when_full(folder: Path, wanted: int, name: str) -> None:
    filesystem = os.statvfs(folder)
    free = filesystem.f_bavail * filesystem.f_frsize
    if wanted + FREE_SPACE_KEPT_BYTES > free:
        raise HostError(
            FailureCode.CAPACITY,
            f"Image {name} needs {wanted // 2**20} MiB, and the node has {free // 2**20} MiB free.",
            "Free disk space on the node, or remove images nobody uses from its cache.",
        )


def _fetch_failed(spec: ImageSpec, error: Exception) -> HostError:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return HostError(
            FailureCode.CAPACITY,
            f"The node's disk is full; image {spec.name} could not be stored.",
            "Free disk space on the node, then try again.",
        )
    said = " ".join(str(error).split()) or type(error).__name__
    return HostError(
        FailureCode.HOST,
        f"Image {spec.name} could not be fetched: {said}",
        "What was fetched is kept; the next pull resumes there.",
    )
