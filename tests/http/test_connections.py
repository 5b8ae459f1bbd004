"""What one connection does harms no other: asked by a bare HTTP/2 client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

from svc_http import connections
from tests.support.example_service import Served


@dataclass
class Client:
    stream: trio.SocketStream
    connection: h2.connection.H2Connection
    seen: list[h2.events.Event] = field(default_factory=list)

    async def send(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def until_ended(self, stream_id: int) -> None:
        with trio.fail_after(5):
            while not any(isinstance(e, h2.events.StreamEnded) and e.stream_id == stream_id for e in self.seen):
                data = await self.stream.receive_some()
                assert data, "the server closed the connection"
                self.seen += self.connection.receive_data(data)
                await self.send()

    def headers(self, method: str) -> list[tuple[str, str]]:
        return [(":method", method), (":path", "/"), (":scheme", "http"), (":authority", "test")]


@asynccontextmanager
async def http2_client() -> AsyncIterator[Client]:
    connections.install()
    app = QuartTrio(__name__)

    @app.get("/")
    async def root() -> str:
        return "here"

    config = Config()
    config.bind = ["127.0.0.1:0"]
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve, app, config)
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        async with stream:
            client = Client(stream, h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8")))
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
        later = client.connection.get_next_available_stream_id()
        client.connection.send_headers(later, client.headers("GET"), end_stream=True)
        await client.send()
        await client.until_ended(later)


async def test_a_defect_in_one_connection_ends_no_other(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    read = connections.ContainedConnection._read_data
    broken: list[bool] = []

    async def once_broken(self: connections.ContainedConnection) -> None:
        if not broken:
            broken.append(True)
            raise RuntimeError("nobody foresaw this")
        await read(self)

    monkeypatch.setattr(connections.ContainedConnection, "_read_data", once_broken)
    async with httpx.AsyncClient(base_url=server.url, verify=server.trust) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/api/v1/openapi.json")
        assert (await http.get("/api/v1/openapi.json")).status_code == 200
