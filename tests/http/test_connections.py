"""What one connection does harms no other: asked by a bare HTTP/2 client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import httpx
import pytest
import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

from svc_actors.admission import Admission
from svc_actors.store import Database
from svc_http import connections
from svc_http import server as server_module
from svc_http.server import KEEP_ALIVE
from tests.support.example_service import Served, served

MUCH = 32 << 20
"""Bytes: more than the kernel takes for a client that reads nothing."""
READER = {"Authorization": "Bearer customer,read"}


@dataclass
class Client:
    stream: trio.SocketStream
    connection: h2.connection.H2Connection
    stop: trio.Event
    """Has the server stop."""
    answer: trio.Event
    """Until then, it answers nothing at /slow."""
    seen: list[h2.events.Event] = field(default_factory=list)

    async def send(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def ask(self, path: str = "/") -> int:
        stream_id = self.connection.get_next_available_stream_id()
        self.connection.send_headers(stream_id, self.headers("GET", path), end_stream=True)
        await self.send()
        return stream_id

    async def until_ended(self, stream_id: int) -> None:
        await self.until(lambda e: isinstance(e, h2.events.StreamEnded) and e.stream_id == stream_id)

    async def until(self, came: Callable[[h2.events.Event], bool]) -> None:
        with trio.fail_after(60):
            while not any(came(event) for event in self.seen):
                data = await self.stream.receive_some()
                assert data, "the server closed the connection"
                self.seen += self.connection.receive_data(data)
                await self.send()

    def headers(self, method: str, path: str = "/") -> list[tuple[str, str]]:
        return [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]


@asynccontextmanager
async def http2_client() -> AsyncIterator[Client]:
    connections.install()
    app = QuartTrio(__name__)

    @app.get("/")
    async def root() -> str:
        return "here"

    @app.get("/much")
    async def much() -> bytes:
        return b"x" * MUCH

    stop, answer = trio.Event(), trio.Event()

    @app.get("/slow")
    async def slow() -> str:
        await answer.wait()
        return "here"

    config = Config()
    config.bind = ["127.0.0.1:0"]
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, app, config, shutdown_trigger=stop.wait))
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        async with stream:
            connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
            client = Client(stream, connection, stop, answer)
            client.connection.initiate_connection()
            await client.send()
            yield client
        nursery.cancel_scope.cancel()


async def test_data_for_a_stream_that_was_answered_already_harms_nobody() -> None:
    async with http2_client() as client:
        refused = client.connection.get_next_available_stream_id()
        client.connection.send_headers(refused, client.headers("POST"))
        await client.send()
        await client.until_ended(refused)
        client.connection.send_data(refused, b"x" * 1000)
        await client.send()
        await client.until_ended(await client.ask())


async def test_a_request_that_is_given_up_while_its_answer_waits_leaves_the_others_readable() -> None:
    """Its header block must go out all the same: those after it are compressed by what it held."""
    async with http2_client() as client:
        client.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2 * MUCH})
        client.connection.increment_flow_control_window(2 * MUCH)
        much = await client.ask("/much")
        await trio.testing.wait_all_tasks_blocked()
        given_up = await client.ask("/nowhere")
        await trio.testing.wait_all_tasks_blocked()
        client.connection.reset_stream(given_up)
        await client.send()
        await trio.testing.wait_all_tasks_blocked()

        await client.until_ended(much)
        await client.until_ended(await client.ask("/nowhere"))


async def test_while_the_server_stops_the_first_request_of_a_connection_is_answered() -> None:
    async with http2_client() as client:
        client.stop.set()
        await trio.testing.wait_all_tasks_blocked()

        await client.until_ended(await client.ask())


async def test_while_the_server_stops_a_later_request_may_be_sent_again_elsewhere() -> None:
    def refused(event: h2.events.Event) -> bool:
        return isinstance(event, h2.events.StreamReset) and event.error_code is h2.errors.ErrorCodes.REFUSED_STREAM

    async with http2_client() as client:
        first = await client.ask("/slow")
        await trio.testing.wait_all_tasks_blocked()
        client.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        await client.ask()
        await client.until(refused)
        client.answer.set()

        await client.until_ended(first)


async def test_a_defect_in_one_connection_ends_no_other(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read = connections.ContainedConnection._read_data
    broken: list[bool] = []

    async def once_broken(self: connections.ContainedConnection) -> None:
        if not broken:
            broken.append(True)
            raise RuntimeError("nobody foresaw this")
        await read(self)

    monkeypatch.setattr(connections.ContainedConnection, "_read_data", once_broken)
    async with httpx.AsyncClient(base_url=server.url, verify=server.trust, timeout=60) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/api/v1/openapi.json")
        assert (await http.get("/api/v1/openapi.json")).status_code == 200


async def said(server: Served, request: bytes) -> bytes:
    """What the server answers to these bytes over TLS, up to its closing or 200 bytes."""
    context = server.trust
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(tcp, context, server_hostname="localhost", https_compatible=True)
    with trio.fail_after(60):
        await stream.send_all(request)
        answer = b""
        while len(answer) < 200 and (data := await stream.receive_some()):
            answer += data
    await trio.aclose_forcefully(stream)
    return answer


async def test_an_answer_of_known_length_goes_out_whole(server: Served) -> None:
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(tcp, server.trust, server_hostname="localhost", https_compatible=True)

    with trio.fail_after(60):
        await stream.send_all(b"GET /api/v1/nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        record = bytes(await stream.receive_some())
    await trio.aclose_forcefully(stream)

    head, _, body = record.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"content-length: %d" % len(body) in head.lower()


async def test_a_connection_whose_client_has_closed_its_end_is_closed(server: Served) -> None:
    """And not kept for as long as a client may take for its next request."""
    tcp = await trio.open_tcp_stream("127.0.0.1", server.port)
    stream = trio.SSLStream(tcp, server.trust, server_hostname="localhost", https_compatible=True)

    with trio.fail_after(KEEP_ALIVE / 2):
        await stream.send_all(b"GET /api/v1/nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stream.receive_some()
        await tcp.send_eof()
        while await tcp.receive_some():
            pass
    await trio.aclose_forcefully(stream)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        b"POST /api/v1/toys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_another_server_may_read_in_another_way_is_refused(server: Served, request_: bytes) -> None:
    answer = await said(server, request_)

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()


async def test_silent_connections_of_one_address_do_not_keep_the_next_out(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as there is room for. A stream of events that was open before them stays."""
    monkeypatch.setattr(server_module, "of_clients", lambda: Admission(8, 4))
    async with served(database, tmp_path) as server, AsyncExitStack() as stack:
        http = httpx.AsyncClient(base_url=server.url + "/api/v1", verify=server.trust, headers=READER, timeout=60)
        await stack.enter_async_context(http)
        stream = await stack.enter_async_context(http.stream("GET", "/stream"))
        chunks = stream.aiter_bytes()
        assert await anext(chunks)
        silent = [
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", server.port)) for _ in range(16)
        ]

        async with httpx.AsyncClient(base_url=server.url + "/api/v1", verify=server.trust, timeout=60) as other:
            answer = await other.get("/openapi.json")

        assert answer.status_code == 200
        with trio.fail_after(5):
            assert await silent[0].receive_some() == b"", "the first of the silent ones has made room"
        assert len(server.app.streams) == 1
