"""The image cache: nothing unverified is ever used, and no byte is fetched twice without need."""

from __future__ import annotations

import gzip
import hashlib
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import trio
from pydantic import AnyUrl
from trio.testing import MockClock

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.protocol import FailureCode, ImageFormat, ImageSpec, UrlSource
from tests.nodeagent.hypervisor.builders import image, silent
from tests.nodeagent.hypervisor.publisher import CONTENT, NAMES, URL, Publisher, browse, cache, published


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

    with pytest.raises(HostError, match="compressed answer"):
        await images.ensure(published(), silent)

    assert list(folders.images.iterdir()) == []


@pytest.mark.parametrize("said", ["identity", "Identity", ""])
async def test_an_answer_that_says_that_it_is_not_encoded_is_taken(tmp_path: Path, said: str) -> None:
    spec = published()

    def site(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": said}, stream=httpx.ByteStream(CONTENT))

    images, folders = cache(tmp_path, site)

    await images.ensure(spec, silent)

    assert (folders.images / file_name(spec)).read_bytes() == CONTENT


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
