"""A visit to a site itself: asked of this server under the site's name, bounded, and never an error of the core's."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.site_tasks import HostTasks, SiteVisit
from tests.support.panel import RecordedLauncher


@asynccontextmanager
async def answering(answer: bytes, asked: list[bytes]) -> AsyncIterator[int]:
    async def serve(stream: trio.SocketStream) -> None:
        asked.append(bytes(await stream.receive_some(4096)))
        await stream.send_all(answer)
        await stream.send_eof()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def visited(port: int, tmp_path: Path) -> tuple[int, list[str]]:
    lines: list[str] = []

    async def take(some: list[str]) -> None:
        lines.extend(some)

    tasks = HostTasks(HostFolders(tmp_path), RecordedLauncher(), port, port)
    return await tasks.visit(SiteVisit("shop.example", "/cron?a=1", secure=False), take), lines


async def test_the_site_is_asked_by_its_name_and_its_answer_is_kept(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\ntwo\nlines!\n", asked) as port:
        status, lines = await visited(port, tmp_path)

    assert (status, lines) == (200, ["HTTP 200 OK", "two", "lines!"])
    assert asked[0].startswith(b"GET /cron?a=1 HTTP/1.1\r\n")
    assert b"Host: shop.example\r\n" in asked[0]


async def test_what_a_site_compresses_is_not_unpacked_into_the_memory_of_the_core(tmp_path: Path) -> None:
    asked: list[bytes] = []
    packed = gzip.compress(bytes(32 << 20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"

    async with answering(head.encode() + packed, asked) as port:
        status, lines = await visited(port, tmp_path)

    assert status == 200
    assert sum(map(len, lines)) < 1 << 20
    assert b"Accept-Encoding: identity\r\n" in asked[0]


async def test_a_redirect_is_told_and_not_followed(tmp_path: Path) -> None:
    asked: list[bytes] = []
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:22/\r\nContent-Length: 0\r\n\r\n"

    async with answering(answer, asked) as port:
        status, lines = await visited(port, tmp_path)

    assert (status, lines) == (302, ["HTTP 302 Found"])
    assert len(asked) == 1


async def test_a_site_that_hangs_up_is_told(tmp_path: Path) -> None:
    async with answering(b"", []) as port:
        status, lines = await visited(port, tmp_path)

    assert status == 0
    assert lines[0].startswith("shop.example did not answer: ")
