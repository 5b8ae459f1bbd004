"""Receivers of webhooks, real HTTPS servers on 127.0.0.1 which answer as a test says, and a panel that reaches them."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import UUID

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.webhooks import Scalar, Subject, WebhookEvent, emit
from svc_actors.store import Database, Record
from svc_actors.webhooks.settings import WebhookSettings
from svc_common.outbound import Resolve
from tests.support.certificates import self_signed
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host

NAME = "hooks.example"
"""What receivers are called; it leads to this host."""
HANG = 0
"""In the place of a status: no answer, for as long as the sender waits."""


@dataclass(frozen=True)
class Received:
    """A request as it came, to the byte."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name: value for name, _, value in (line.partition(": ") for line in lines if line)}

    @property
    def delivery(self) -> str:
        return self.headers["X-Service-Delivery"]

    @property
    def signature(self) -> str:
        return self.headers["X-Service-Signature"]

    @property
    def timestamp(self) -> int:
        return int(self.signature.partition(",")[0].removeprefix("t="))

    def json(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.body)
        return said


@dataclass
class Receiver:
    """`answers` are statuses, one a request, the last of them for all that follow. `before_answer` is awaited between
    a request and its answer."""

    port: int = 0
    answers: list[int] = field(default_factory=lambda: [200])
    headers: Mapping[str, str] = field(default_factory=dict)
    before_answer: Callable[[Received], Awaitable[None]] | None = None
    received: list[Received] = field(default_factory=list)
    _send: trio.MemorySendChannel[Received] = field(init=False)
    _arrived: trio.MemoryReceiveChannel[Received] = field(init=False)

    def __post_init__(self) -> None:
        self._send, self._arrived = trio.open_memory_channel[Received](10_000)

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}/hook?key=1"

    async def next(self) -> Received:
        """The next request."""
        return await self._arrived.receive()

    async def handle(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            while (request := await _request(stream)) is not None:
                self.received.append(request)
                self._send.send_nowait(request)
                if self.before_answer is not None:
                    await self.before_answer(request)
                status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if status == HANG:
                    await trio.sleep_forever()
                further = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
                await stream.send_all(f"HTTP/1.1 {status} Said\r\n{further}Content-Length: 2\r\n\r\nok".encode())
        except trio.BrokenResourceError:
            return  # Whoever asked has gone.


async def _request(stream: trio.SSLStream[trio.SocketStream]) -> Received | None:
    read = b""
    while b"\r\n\r\n" not in read:
        chunk = await stream.receive_some()
        if not chunk:
            return None
        read += chunk
    head, _, body = read.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0].partition(b":")[2]):
        body += await stream.receive_some()
    return Received(head, body)


async def leads_here(host: str, port: int) -> list[str]:
    """A resolver by which every name is this host."""
    await trio.lowlevel.checkpoint()
    return ["127.0.0.1"]


def wall_clock() -> Callable[[], datetime]:
    """The time of day, which moves with Trio's clock."""
    began, at = trio.current_time(), datetime.now(UTC)
    return lambda: at + timedelta(seconds=trio.current_time() - began)


@dataclass
class Receiving:
    """Where receivers run, also while no panel does. `authorities`: who vouches for them."""

    nursery: trio.Nursery
    tls: ssl.SSLContext
    authorities: Path

    async def receiver(self, *answers: int) -> Receiver:
        receiver = Receiver(answers=list(answers) or [200])
        [listener] = await self.nursery.start(_serve, receiver, self.tls)
        receiver.port = listener.transport_listener.socket.getsockname()[1]
        return receiver


@dataclass
class WebhookWorld:
    """A panel, an administrator of it, and receivers that it reaches."""

    panel: PanelHarness
    administrator: Client
    receiving: Receiving
    _changes: trio.MemoryReceiveChannel[str]

    @property
    def database(self) -> Database:
        return self.panel.database

    async def receiver(self, *answers: int) -> Receiver:
        return await self.receiving.receiver(*answers)

    async def endpoint(self, receiver: Receiver, *events: str) -> dict[str, Any]:
        """An endpoint made by the API, with its secret."""
        answer = await self.administrator.post("/webhooks", {"url": receiver.url, "events": list(events) or ["*"]})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def emit(self, event: WebhookEvent = WebhookEvent.SITE_CREATED, **data: Scalar) -> UUID:
        async with self.database.transaction() as tx:
            return await emit(tx, event, subject=Subject("site", "s1", "a.example"), data=data)

    async def delivery(self, endpoint_id: str) -> Record:
        """The only delivery of an endpoint."""
        [row] = await self.database.fetch("SELECT * FROM webhook_deliveries WHERE endpoint_id = $1", UUID(endpoint_id))
        return row

    async def recorded(self, endpoint_id: str, *, attempts: int) -> Record:
        """The only delivery of an endpoint, once so many attempts have an outcome and pages were told."""
        while (row := await self.delivery(endpoint_id))["attempts"] < attempts:
            await self._changes.receive()
        return row


async def _serve(receiver: Receiver, tls: ssl.SSLContext, task_status: trio.TaskStatus[Any]) -> None:
    await trio.serve_ssl_over_tcp(receiver.handle, 0, tls, host="127.0.0.1", task_status=task_status)


@asynccontextmanager
async def open_receiving(folder: Path) -> AsyncIterator[Receiving]:
    files = self_signed(folder, (NAME, "localhost"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.certificate, files.key)
    async with trio.open_nursery() as nursery:
        yield Receiving(nursery, tls, files.certificate)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_webhooks(
    database: Database,
    folder: Path,
    *,
    resolve: Resolve = leads_here,
    clock: Callable[[], datetime] | None = None,
    allowed: str = "127.0.0.1/32",
    receiving: Receiving | None = None,
) -> AsyncIterator[WebhookWorld]:
    """With `receiving`, a panel that is one of several in a row over the same database."""
    async with AsyncExitStack() as stack:
        own = None if receiving else await stack.enter_async_context(open_receiving(folder))
        receiving = receiving or own
        assert receiving is not None
        host = replace(recorded_host(), resolve=resolve, clock=clock or wall_clock())
        settings = WebhookSettings(networks=(ip_network(allowed),), ca_file=receiving.authorities)
        panel = await stack.enter_async_context(
            open_panel(
                database,
                folder,
                host,
                webhooks=settings,
                loops=["events", "jobs", "web server", "webhook history", "webhooks"],
            )
        )
        nursery = await stack.enter_async_context(trio.open_nursery())
        send, changes = trio.open_memory_channel[str](10_000)
        await nursery.start(_hear, panel, send)
        people = await database.fetchval("SELECT count(*) FROM users")
        yield WebhookWorld(panel, await panel.administrator(f"root{people}@example.com"), receiving, changes)
        if own is not None:
            own.nursery.cancel_scope.cancel()  # The panel waits for answers that are under way.
        nursery.cancel_scope.cancel()


async def _hear(panel: PanelHarness, send: trio.MemorySendChannel[str], task_status: trio.TaskStatus[None]) -> None:
    async with panel.services.events.subscribe(None) as events:
        task_status.started()
        async for event in events:
            if event.kind == PanelEvent.WEBHOOK:
                send.send_nowait(str(event.subject))


async def later(clock: MockClock, seconds: float, database: Database) -> None:
    """Let time pass for everybody, between two statements: one that is under way would be given up as too slow."""
    while True:
        await wait_all_tasks_blocked(0.01)
        if not database.statistics().in_use:
            break
    clock.jump(seconds)
