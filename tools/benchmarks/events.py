"""B7b: what 2,000 readers of the event stream and everybody else wait while 50 changes a second happen.

The server runs in a process of its own, on a core of its own where there are two; readers, changes and the other
requests come from this one. Run as `python -m tools.benchmarks.events [READERS]`.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import httpx
import trio

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import Database, NewEvent, append, embedded, migrate
from tests.support.certificates import self_signed
from tools.benchmarks import Ratio
from tools.benchmarks.http import seed, serving

READERS: Final = 2_000
CHANGES_A_SECOND: Final = 50
SECONDS: Final = 15.0
JOIN_AT_ONCE: Final = 20
DELIVERY_GOAL: Final = 0.5
REQUEST_GOAL: Final = 0.05
_MADE_AT = re.compile(rb'"made_at":([\d.]+)')


def measure() -> list[Ratio]:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})  # with PostgreSQL, which inherits it; the server has the other core
    return trio.run(_measure, READERS)


async def _measure(readers: int) -> list[Ratio]:
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    self_signed(folder)
    async with embedded(folder / "postgresql") as url, Database.open(url) as database:
        await migrate(database)
        token, _ = await seed(database)
        async with serving("ours", folder, url) as port:
            delivered, answered = await _crowd(port, token, database, readers)
    name = f"{readers:,} readers, {CHANGES_A_SECOND} changes a second:"
    return [
        Ratio(f"B7 {name} p99 of delivery : goal", _p99(delivered), DELIVERY_GOAL, "s", 1, False),
        Ratio(f"B7 {name} p99 of GET /me : goal", _p99(answered), REQUEST_GOAL, "s", 1, False),
    ]


async def _crowd(port: int, token: str, database: Database, readers: int) -> tuple[list[float], list[float]]:
    delivered: list[float] = []
    answered: list[float] = []
    async with trio.open_nursery() as nursery:
        gate = trio.CapacityLimiter(JOIN_AT_ONCE)
        async with trio.open_nursery() as joining:
            opened: list[trio.SSLStream[trio.SocketStream]] = []
            for _ in range(readers):
                joining.start_soon(_join, port, token, gate, opened)
        for stream in opened:
            nursery.start_soon(_read, stream, delivered)
        nursery.start_soon(_ask, port, token, answered)
        await _change(database)
        await trio.sleep(1)  # what is on its way still counts
        nursery.cancel_scope.cancel()
    for stream in opened:
        await trio.aclose_forcefully(stream)
    assert len(delivered) >= readers * CHANGES_A_SECOND * SECONDS * 0.9, "changes were lost"
    return delivered, answered


async def _join(
    port: int, token: str, gate: trio.CapacityLimiter, opened: list[trio.SSLStream[trio.SocketStream]]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    async with gate:
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", port), context, server_hostname="bench")
        await stream.send_all(request)
        received = b""
        while b"retry: " not in received:
            received += await stream.receive_some()
        opened.append(stream)


async def _read(stream: trio.SSLStream[trio.SocketStream], delivered: list[float]) -> None:
    tail = b""
    while True:
        data = tail + await stream.receive_some(1 << 17)
        now = time.monotonic()
        whole, end, tail = data.rpartition(b"\n\n")
        delivered += [now - float(made) for made in _MADE_AT.findall(whole + end)]


async def _change(database: Database) -> None:
    began = trio.current_time()
    for number in range(int(SECONDS * CHANGES_A_SECOND)):
        await trio.sleep_until(began + number / CHANGES_A_SECOND)
        async with database.transaction() as tx:
            payload = {"id": str(number), "status": "running", "name": f"vm-{number}", "made_at": time.monotonic()}
            await append(tx, NewEvent(kind=ControllerEvent.VM, subject=str(number), payload=payload))


async def _ask(port: int, token: str, answered: list[float]) -> None:
    """Somebody's own account, twenty times a second."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(verify=False, base_url=f"https://127.0.0.1:{port}", headers=headers) as http:
        while True:
            began = time.monotonic()
            (await http.get("/api/v1/me", timeout=30)).raise_for_status()
            answered.append(time.monotonic() - began)
            await trio.sleep(0.05)


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


if __name__ == "__main__":
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})
    for row in trio.run(_measure, int(sys.argv[1]) if len(sys.argv) > 1 else READERS):
        print(f"{row.name}: {row.ours:,.3g} : {row.peer:,.3g} {row.unit}")
