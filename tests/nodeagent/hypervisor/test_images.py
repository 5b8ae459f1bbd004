"""The image cache: nothing unverified is ever used, and no byte is fetched twice without need."""

from __future__ import annotations

import gzip
import hashlib
import os
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import trio
from pydantic import AnyUrl
from trio.testing import MockClock

from svc_nodeagent import outbound
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import images as images_module
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, ImageFormat, ImageSpec, UrlSource
from tests.nodeagent.hypervisor.builders import FileStream, image, machine, record, silent

CONTENT = bytes(range(256)) * 4096  # 1 MiB
URL = "https://images.example/disk.raw"
NAMES = {"images.example": ["93.184.215.14"]}
Answer = Callable[[httpx.Request], httpx.Response]


class Publisher:
    """A site that serves one file with ranges, and may stop in the middle of it."""

    def __init__(
        self, content: bytes = CONTENT, *, stops_after: int | None = None, seconds_a_chunk: float = 0.0
    ) -> None:
        self.content = content
        self.seconds_a_chunk = seconds_a_chunk
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
            await trio.sleep(self.seconds_a_chunk)
            self.sent += len(data[at : at + 65536])
            yield data[at : at + 65536]


def published(content: bytes = CONTENT) -> ImageSpec:
    return image(content, format=ImageFormat.RAW).model_copy(update={"source": UrlSource(url=AnyUrl(URL))})


def cache(
    tmp_path: Path, site: Answer | None = None, *, open_client: Callable[[], httpx.AsyncClient] | None = None
) -> tuple[ImageCache, Folders]:
    folders = Folders(tmp_path)
    folders.create()

    async def open_stream(token: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return FileStream(CONTENT)

    return ImageCache(folders, open_stream, open_client=open_client or partial(browse, site)), folders


def browse(site: Answer | None, names: Mapping[str, list[str]] = NAMES) -> httpx.AsyncClient:
    """The client of the agent, with `site` in the network's place and `names` in the resolver's."""

    async def resolve(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        return names.get(host, [host])

    def answer(request: httpx.Request) -> httpx.Response:
        assert site is not None, "there is no site"
        return site(request)

    return outbound.client(timeout=5, resolve=resolve, transport=httpx.MockTransport(answer))


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


async def test_on_a_short_disk_the_images_that_nobody_uses_go_the_longest_unasked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = []
    for number in range(4):
        content = CONTENT + bytes([number])
        images, folders = cache(tmp_path, Publisher(content))
        specs.append(published(content))
        await images.ensure(specs[-1], silent)
    used, recent, older, oldest = specs
    for spec, hours in ((used, 9), (older, 3), (oldest, 5)):
        asked = time.time() - 3600 * hours
        os.utime(folders.images / f"{spec.image_id}.json", (asked, asked))
    standing = record(machine(), file_name(used))
    folders.machine(standing.vm_id).mkdir()
    (folders.machine(standing.vm_id) / "machine.json").write_text(standing.model_dump_json())

    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 0.0)
    monkeypatch.setattr(images_module, "_SHORT_BELOW_BYTES", 0)
    with_space = await images.make_room()
    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 2.0)
    short = await images.make_room()

    assert with_space == []
    assert short == [oldest.image_id, older.image_id]
    assert {kept.image_id for kept in await images.cached()} == {used.image_id, recent.image_id}


async def test_an_image_that_is_asked_for_again_is_not_the_first_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = published()
    images, folders = cache(tmp_path, Publisher())
    await images.ensure(spec, silent)
    os.utime(folders.images / f"{spec.image_id}.json", (0, 0))
    monkeypatch.setattr(images_module, "_SHORT_BELOW_SHARE", 2.0)

    await images.ensure(spec, silent)

    assert await images.make_room() == []


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


async def test_a_refusal_tells_no_credentials_of_the_address(tmp_path: Path) -> None:
    images, _ = cache(tmp_path, lambda request: httpx.Response(403))
    address = AnyUrl("https://mirror:Sesame-open-1@images.example/disk.raw?signature=Sesame-open-1")

    with pytest.raises(HostError) as failure:
        await images.ensure(published().model_copy(update={"source": UrlSource(url=address)}), silent)

    assert "403" in failure.value.message
    assert "Sesame" not in f"{failure.value.message} {failure.value.hint}"


async def test_an_encoded_answer_is_refused_and_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(gzip.compress(bytes(64 * 2**20)))

    def site(request: httpx.Request) -> httpx.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return httpx.Response(200, headers={"Content-Encoding": "gzip, gzip"}, stream=httpx.ByteStream(bomb))

    images, folders = cache(tmp_path, site)

    with pytest.raises(HostError, match="encoded"):
        await images.ensure(published(), silent)

    assert list(folders.images.iterdir()) == []


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:8445/metrics",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.7/",
        "http://100.64.0.1/",
        "http://[fd00::1]/",
        "http://[fe80::1]/",
        "http://0.0.0.0/",
        "http://inside.example/",
    ],
)
@pytest.mark.parametrize("by_redirect", [False, True])
async def test_an_image_is_never_fetched_from_this_host_or_the_network_behind_it(
    tmp_path: Path, target: str, by_redirect: bool
) -> None:
    asked: list[str] = []

    def site(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(302, headers={"Location": target})

    names = {**NAMES, "inside.example": ["93.184.215.14", "192.168.0.1"]}
    images, folders = cache(tmp_path, open_client=partial(browse, site, names))
    url = AnyUrl(URL if by_redirect else target)

    with pytest.raises(HostError, match="public Internet"):
        await images.ensure(published().model_copy(update={"source": UrlSource(url=url)}), silent)

    assert asked == (["93.184.215.14"] if by_redirect else [])
    assert list(folders.images.iterdir()) == []


@pytest.mark.parametrize("declares", [True, False])
async def test_a_file_larger_than_its_size_was_said_to_be_is_ended_and_discarded(
    tmp_path: Path, declares: bool
) -> None:
    site = Publisher()
    headers = {"Content-Length": str(len(CONTENT))} if declares else {}
    images, folders = cache(tmp_path, lambda _: httpx.Response(200, headers=headers, content=site._body(CONTENT)))

    with pytest.raises(HostError, match="larger than the 0 MiB") as refusal:
        await images.ensure(published().model_copy(update={"size_bytes": 200_000}), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert site.sent <= 262_144
    assert list(folders.images.iterdir()) == []


async def test_an_endless_file_of_unknown_size_is_ended_and_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.MOST_IMAGE_BYTES", 300_000)
    site = Publisher()
    images, folders = cache(tmp_path, lambda _: httpx.Response(200, content=site._body(CONTENT)))

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert site.sent <= 393_216
    assert list(folders.images.iterdir()) == []


async def test_a_download_leaves_the_host_its_room_also_when_others_fill_the_disk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_nodeagent.hypervisor.images._LOOKED_AT_EVERY", 200_000)
    site = Publisher()

    async def filled(percent: int, message: str) -> None:
        await trio.lowlevel.checkpoint()
        monkeypatch.setattr("svc_nodeagent.hypervisor.images.FREE_SPACE_KEPT_BYTES", 2**60)

    images, _ = cache(tmp_path, site)

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(), filled)

    assert refusal.value.code is FailureCode.CAPACITY
    assert site.sent < len(CONTENT)


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (60, struct.pack(">I", 65_535), "snapshots"),
        (72, struct.pack(">Q", 4), "other files"),
        (72, struct.pack(">Q", 1 << 40), "features"),
        (8, struct.pack(">QI", 512, 8), "other files"),
        (32, struct.pack(">I", 1), "encrypted"),
        (36, struct.pack(">I", 2**30), "larger"),
        (24, struct.pack(">Q", 2**62), "larger"),
        (20, struct.pack(">I", 63), "size"),
        (4, struct.pack(">I", 9), "version"),
    ],
)
async def test_a_header_that_would_mislead_or_tire_qemu_is_refused_before_qemu_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, value: bytes, why: str
) -> None:
    plain = tmp_path / "plain.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", plain, "1M")
    crafted = bytearray(plain.read_bytes())
    crafted[offset : offset + len(value)] = value
    spec = published(bytes(crafted)).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(bytes(crafted)))
    monkeypatch.setattr("svc_nodeagent.hypervisor.images.inspect", None)

    with pytest.raises(HostError, match=why) as refusal:
        await images.ensure(spec, silent)

    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


async def test_a_plain_image_is_taken(tmp_path: Path) -> None:
    plain = tmp_path / "plain.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", plain, "1G")
    spec = published(plain.read_bytes()).model_copy(update={"format": ImageFormat.QCOW2})
    images, folders = cache(tmp_path / "data", Publisher(plain.read_bytes()))

    await images.ensure(spec, silent)

    assert (folders.images / file_name(spec)).exists()


@pytest.mark.parametrize("form", ["vmdk", "vdi", "vpc"])
async def test_an_image_of_another_format_is_not_taken_for_what_it_is_not(tmp_path: Path, form: str) -> None:
    """A VMDK's descriptor names the files of its extents, any on the host."""
    other = tmp_path / "other"
    await run_program("qemu-img", "create", "-q", "-f", form, other, "1M")
    content = other.read_bytes()
    images, folders = cache(tmp_path / "data", Publisher(content))

    with pytest.raises(HostError) as refusal:
        await images.ensure(published(content).model_copy(update={"format": ImageFormat.QCOW2}), silent)

    assert refusal.value.code is FailureCode.INVALID
    assert list(folders.images.iterdir()) == []


@pytest.fixture
def fast_clock() -> MockClock:
    """A hundred times as fast as ours, so that threads at work take next to no time."""
    return MockClock(rate=100)


async def test_progress_is_told_every_few_seconds_however_much_comes(tmp_path: Path, fast_clock: MockClock) -> None:
    images, _ = cache(tmp_path, Publisher(seconds_a_chunk=2.0))
    told: list[float] = []

    async def report(percent: int, message: str) -> None:
        await trio.lowlevel.checkpoint()
        told.append(trio.current_time())

    began = trio.current_time()
    await images.ensure(published(), report)

    assert told[0] - began < 10  # at once, with the first bytes
    assert 5 <= len(told) <= 12  # of 16 chunks in half a minute
    assert min(later - earlier for earlier, later in pairwise(told)) >= 3.0
