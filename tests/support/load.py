"""A thousand readers of the event stream, a tenth of whom never read, and what those cost the others."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import trio

from tests.support.deployment import Api, Deployment, open_deployment

READERS = 900
SLEEPERS = 100
MARKS = 8
PACE = 0.25
FLOOD = 700
AT_ONCE = 30
_MARK = re.compile(rb"mark-(\d+)-")


@dataclass
class Marks:
    """When each mark was made, and how long it took to each reader."""

    made: dict[int, float] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)

    def seen(self, mark: int) -> None:
        if mark in self.made:
            self.delays.append(trio.current_time() - self.made[mark])

    def p99(self) -> float:
        ordered = sorted(self.delays)
        return ordered[len(ordered) * 99 // 100]


@dataclass
class Load:
    house: Deployment
    project: str
    joined: int = 0
    marks: Marks = field(default_factory=Marks)
    sleepers: list[trio.SSLStream[trio.SocketStream]] = field(default_factory=list)

    async def join(self, context: ssl.SSLContext, gate: trio.CapacityLimiter, *, asleep: bool) -> None:
        async with gate:
            stream = await self._open(context, asleep=asleep)
            self.joined += 1
        if asleep:
            self.sleepers.append(stream)
            return
        seen: set[int] = set()
        unread = b""
        async with stream:
            while data := await stream.receive_some(65536):
                unread += data
                for found in _MARK.finditer(unread):
                    mark = int(found[1])
                    if mark not in seen:
                        seen.add(mark)
                        self.marks.seen(mark)
                unread = unread[-64:]
        raise AssertionError("the stream of somebody who reads was ended")

    async def _open(self, context: ssl.SSLContext, *, asleep: bool) -> trio.SSLStream[trio.SocketStream]:
        tcp = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if asleep:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await tcp.connect(("127.0.0.1", self.house.stack.api_port))
        stream = trio.SSLStream(trio.SocketStream(tcp), context, server_hostname="127.0.0.1", https_compatible=True)
        request = (
            f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.house.stack.token}\r\n\r\n"
        )
        await stream.send_all(request.encode())
        head = b""
        while b"retry: " not in head:
            head += await stream.receive_some(4096)
            assert head.startswith(b"HTTP/1.1 200"), head
        return stream

    async def flood(self, api: Api, numbers: range) -> None:
        """More changes than a connection nobody reads from can hold."""
        for number in numbers:
            await api.insist("PATCH", f"/projects/{self.project}", {"name": f"flood-{number}-{'x' * 80}"})

    async def flood_until_dropped(self, api: Api) -> None:
        """Changes go on until those who never read are streams no more: what the kernel holds for them is its own
        decision, and what is sent is the less, the more changes go out together."""
        first = FLOOD
        while await self._streams() > READERS:
            await self.flood(api, range(first, first + AT_ONCE))
            first += AT_ONCE

    async def _streams(self) -> int:
        async with httpx.AsyncClient(timeout=30) as http:
            metrics = await http.get(f"http://127.0.0.1:{self.house.stack.operations_port}/metrics")
        found = re.search(r"^svc_event_streams (\S+)$", metrics.text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    async def mark(self, api: Api, first: int) -> float:
        """The 99th percentile of the time from a change to a reader's eyes."""
        self.marks = Marks()
        for number in range(first, first + MARKS):
            self.marks.made[number] = trio.current_time()
            await api.call("PATCH", f"/projects/{self.project}", {"name": f"mark-{number}-"})
            await trio.sleep(PACE)
        with trio.fail_after(30):
            while len(self.marks.delays) < READERS * MARKS:
                await trio.sleep(0.05)
        return self.marks.p99()


def resident_mib(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@asynccontextmanager
async def crowd(house: Deployment, readers: int, sleepers: int) -> AsyncIterator[Load]:
    context = house.tls_context()
    everybody = Load(house, house.project_id)
    gate = trio.CapacityLimiter(20)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as joining:
            for _ in range(sleepers):
                joining.start_soon(lambda: everybody.join(context, gate, asleep=True))
        for _ in range(readers):
            nursery.start_soon(lambda: everybody.join(context, gate, asleep=False))
        with trio.fail_after(60):
            while everybody.joined < readers + sleepers:
                await trio.sleep(0.1)
        yield everybody
        for stream in everybody.sleepers:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def ended(stream: trio.SSLStream[trio.SocketStream]) -> None:
    """Read what was still on its way, to the end that the service has put to it."""
    try:
        while await stream.receive_some(65536):
            pass
    except trio.BrokenResourceError:
        return


@dataclass(frozen=True)
class Disturbance:
    """Seconds from a change to 99 in 100 of those who read, before and beside the sleepers' full connections; MiB by
    which the controller grew."""

    undisturbed: float
    disturbed: float
    growth: float


@asynccontextmanager
async def disturbed_crowd() -> AsyncIterator[tuple[Api, Load, Disturbance]]:
    """A crowd after a flood that fills the connections of those who never read. Every mark reached every reader."""
    async with (
        open_deployment(nodes=1, seed=111) as house,
        house.api() as api,
        crowd(house, READERS, SLEEPERS) as everybody,
    ):
        assert house.stack.controller.process is not None
        pid = house.stack.controller.process.pid
        undisturbed = await everybody.mark(api, 1_000)
        before = resident_mib(pid)
        async with trio.open_nursery() as nursery:
            for first in range(AT_ONCE):
                nursery.start_soon(everybody.flood, api, range(first, FLOOD, AT_ONCE))
        await everybody.mark(api, 1_500)  # Those who read have caught up with the flood.
        disturbed = await everybody.mark(api, 2_000)
        yield api, everybody, Disturbance(undisturbed, disturbed, resident_mib(pid) - before)
