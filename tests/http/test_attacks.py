"""Known ways to tire a web server with little effort: each ends its own connection at most."""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h2.config
import h2.connection
import httpx
import pytest
import trio
import trio.lowlevel

from svc_actors.store import Database
from svc_http import server as server_module
from tests.support.example_service import Served, served

HEADERS = [(":method", "GET"), (":path", "/api/v1/toys/ball"), (":scheme", "https"), (":authority", "localhost")]


@asynccontextmanager
async def tls(server: Served, alpn: str) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(tcp, context, server_hostname="localhost", https_compatible=True)
    try:
        await stream.do_handshake()
        yield stream
    finally:
        await trio.aclose_forcefully(stream)


async def answers(server: Served) -> None:
    with trio.fail_after(60):
        async with httpx.AsyncClient(base_url=server.url + "/api/v1", verify=server.trust, timeout=60) as http:
            assert (await http.get("/openapi.json")).status_code == 200


async def until_closed(stream: trio.SSLStream[trio.SocketStream]) -> None:
    with trio.fail_after(10):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            return


async def test_a_head_that_never_ends_is_not_waited_for(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module._ServerConfig, "keep_alive_timeout", 0.5)
    async with served(database, tmp_path) as server, tls(server, "http/1.1") as slow:
        await slow.send_all(b"GET /api/v1/toys/ball HTTP/1.1\r\nHost: localhost\r\nX-A: ")

        await until_closed(slow)

        await answers(server)


async def flooded(stream: trio.SSLStream[trio.SocketStream], piece: bytes, most: int) -> int:
    """Send the same again and again, until the server has enough or `most` bytes are sent; gives how many were."""
    sent = 0
    with trio.move_on_after(10):
        try:
            while sent < most:
                await stream.send_all(piece)
                sent += len(piece)
        except trio.BrokenResourceError:
            pass
    return sent


async def test_a_head_without_end_is_cut_off(server: Served) -> None:
    async with tls(server, "http/1.1") as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")

        assert await flooded(stream, b"x" * 10_000, 20_000_000) < 20_000_000

    await answers(server)


async def test_streams_opened_and_reset_at_once_tire_nobody_else(server: Served) -> None:
    async with tls(server, "h2") as stream:
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        try:
            for _ in range(2_000):
                number = client.get_next_available_stream_id()
                client.send_headers(number, HEADERS, end_stream=True)
                client.reset_stream(number)
                await stream.send_all(client.data_to_send())
        except trio.BrokenResourceError:
            pass  # The server may have had enough of it.

        await answers(server)


async def test_header_frames_without_end_are_cut_off(server: Served) -> None:
    async with tls(server, "h2") as stream:
        client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        client.initiate_connection()
        await stream.send_all(client.data_to_send())
        block = b"\x00\x01a" + b"\x7f\x80\x7f" + b"b" * 255
        frame = struct.pack(">I", len(block))[1:]
        stream_id = struct.pack(">I", 1)
        await stream.send_all(frame + b"\x01\x00" + stream_id + block)  # HEADERS without END_HEADERS

        continuation = frame + b"\x09\x00" + stream_id + block
        assert await flooded(stream, continuation * 100, 20_000_000) < 20_000_000

    await answers(server)
