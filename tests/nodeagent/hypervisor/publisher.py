"""A site that publishes an image, and the agent's cache that fetches from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

import httpx
import trio
from pydantic import AnyUrl

from svc_nodeagent import outbound
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.protocol import ImageFormat, ImageSpec, UrlSource
from tests.nodeagent.hypervisor.builders import FileStream, image

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
