"""The image cache: nothing unverified is ever used, and no byte is fetched twice without need."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import trio
from pydantic import AnyUrl

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, ImageFormat, ImageSpec, UrlSource
from tests.nodeagent.hypervisor.builders import FileStream, image, machine, record, silent

CONTENT = bytes(range(256)) * 4096  # 1 MiB
URL = "https://images.example/disk.raw"
Answer = Callable[[httpx.Request], httpx.Response]


class Publisher:
    """A site that serves one file with ranges, and may stop in the middle of it."""

    def __init__(self, content: bytes = CONTENT, *, stops_after: int | None = None) -> None:
        self.content = content
        self.stops_after = stops_after
        self.requests: list[str | None] = []
        self.sent = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        wanted = request.headers.get("Range")
        self.requests.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start >= len(self.content) and wanted:
            return httpx.Response(416)
        headers = {"Content-Length": str(len(self.content) - start)}
        return httpx.Response(206 if wanted else 200, headers=headers, content=self._body(self.content[start:]))

    async def _body(self, data: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(data), 65536):
            if self.stops_after is not None and at >= self.stops_after:
                self.stops_after = None
                raise httpx.ReadError("the connection was cut")
            await trio.lowlevel.checkpoint()
            self.sent += len(data[at : at + 65536])
            yield data[at : at + 65536]


def published(content: bytes = CONTENT) -> ImageSpec:
    return image(content, format=ImageFormat.RAW).model_copy(update={"source": UrlSource(url=AnyUrl(URL))})


def cache(tmp_path: Path, site: Answer | None = None) -> tuple[ImageCache, Folders]:
    folders = Folders(tmp_path)
    folders.create()

    async def open_stream(token: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return FileStream(CONTENT)

    client = None if site is None else httpx.AsyncClient(transport=httpx.MockTransport(site))
    return ImageCache(folders, open_stream, client), folders


async def test_a_published_image_is_fetched_once_and_read_only(tmp_path: Path) -> None:
    site, spec = Publisher(), published()
    images, folders = cache(tmp_path, site)
    await images.ensure(spec, silent)
    again = await images.ensure(spec, silent)
    assert len(site.requests) == 1
    path = folders.images / file_name(spec)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o444
    assert await images.cached() == (again,)


async def test_a_file_kept_by_the_controller_is_read_from_its_stream(tmp_path: Path) -> None:
    images, folders = cache(tmp_path)
    spec = image(CONTENT, format=ImageFormat.RAW)
    await images.ensure(spec, silent)
    assert (folders.images / file_name(spec)).read_bytes() == CONTENT


async def test_a_wrong_digest_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    images, folders = cache(tmp_path, Publisher())
    spec = published().model_copy(update={"digest": hashlib.sha256(b"something else").hexdigest()})
    with pytest.raises(HostError) as refusal:
        await images.ensure(spec, silent)
    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_a_download_that_was_cut_goes_on_where_it_stopped(tmp_path: Path) -> None:
    site = Publisher(stops_after=len(CONTENT) // 2)
    images, _ = cache(tmp_path, site)
    spec = published()
    with pytest.raises(HostError):
        await images.ensure(spec, silent)
    await images.ensure(spec, silent)
    assert site.requests == [None, f"bytes={len(CONTENT) // 2}-"]
    assert site.sent == len(CONTENT)


async def test_a_download_whole_but_not_yet_verified_when_the_agent_died_is_not_fetched_again(tmp_path: Path) -> None:
    site, spec = Publisher(), published()
    images, folders = cache(tmp_path, site)
    (folders.images / (file_name(spec) + ".partial")).write_bytes(CONTENT)
    await images.ensure(spec, silent)
    assert site.sent == 0


async def test_remains_of_another_file_do_not_accuse_the_publisher(tmp_path: Path) -> None:
    site, spec = Publisher(), published()
    images, folders = cache(tmp_path, site)
    (folders.images / (file_name(spec) + ".partial")).write_bytes(b"remains")
    await images.ensure(spec, silent)
    assert (folders.images / file_name(spec)).read_bytes() == CONTENT


async def test_pulls_of_one_image_at_once_fetch_it_once(tmp_path: Path) -> None:
    site, spec = Publisher(), published()
    images, _ = cache(tmp_path, site)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(images.ensure, spec, silent)
    assert site.sent == len(CONTENT)


async def test_a_pull_given_up_hands_over_to_the_one_that_waits(tmp_path: Path) -> None:
    site, spec = Publisher(), published()
    images, folders = cache(tmp_path, site)
    begun = trio.Event()

    async def first(percent: int, message: str) -> None:
        begun.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        giving_up = await nursery.start(_in_scope, images, spec, first)
        await begun.wait()
        nursery.start_soon(images.ensure, spec, silent)
        await trio.testing.wait_all_tasks_blocked()
        giving_up.cancel()
    assert (folders.images / file_name(spec)).read_bytes() == CONTENT


async def _in_scope(
    images: ImageCache, spec: ImageSpec, report: object, *, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await images.ensure(spec, report)  # type: ignore[arg-type]


async def test_a_cached_file_that_changed_on_disk_is_not_used(tmp_path: Path) -> None:
    spec = published()
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    path = folders.images / file_name(spec)
    path.chmod(0o644)
    path.write_bytes(b"rot" + CONTENT[3:])
    with pytest.raises(HostError) as refusal:
        await images.ensure(spec, silent)
    assert str(path) in str(refusal.value.hint)


async def test_an_image_that_names_files_of_the_host_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.raw"
    secret.write_bytes(b"\0" * 65536)
    evil = tmp_path / "evil.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", secret, evil)
    spec = published(evil.read_bytes()).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(evil.read_bytes()))
    with pytest.raises(HostError) as refusal:
        await images.ensure(spec, silent)
    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_what_is_no_disk_image_is_refused(tmp_path: Path) -> None:
    images, folders = cache(tmp_path, Publisher())
    with pytest.raises(HostError) as refusal:
        await images.ensure(published().model_copy(update={"format": ImageFormat.QCOW2}), silent)
    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_an_image_with_machines_on_it_is_not_removed(tmp_path: Path) -> None:
    spec = published()
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    standing = record(machine(), file_name(spec))
    folder = folders.machine(standing.vm_id)
    folder.mkdir()
    (folder / "machine.json").write_text(standing.model_dump_json())
    with pytest.raises(HostError) as refusal:
        await images.remove(spec.image_id)
    assert refusal.value.code is FailureCode.CONFLICT
    (folder / "machine.json").unlink()
    await images.remove(spec.image_id)
    await images.remove(spec.image_id)
    assert list(folders.images.iterdir()) == []


async def test_a_file_that_two_images_share_stays_until_the_second_goes(tmp_path: Path) -> None:
    spec = published()
    other = spec.model_copy(update={"image_id": uuid4()})
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    await images.ensure(other, silent)
    await images.remove(spec.image_id)
    assert (folders.images / file_name(spec)).exists()
    assert [kept.image_id for kept in await images.cached()] == [other.image_id]


async def test_an_image_that_does_not_fit_is_refused_before_it_fills_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.FREE_SPACE_KEPT_BYTES", 2**60)
    site = Publisher()
    images, folders = cache(tmp_path, site)
    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), silent)
    assert refusal.value.code is FailureCode.CAPACITY
    assert site.sent == 0
    assert list(folders.images.iterdir()) == []


async def test_a_publisher_that_says_no_is_quoted(tmp_path: Path) -> None:
    images, _ = cache(tmp_path, lambda request: httpx.Response(404))
    with pytest.raises(HostError) as failure:
        await images.ensure(published(), silent)
    assert "404" in failure.value.message
