"""B9: webhook deliveries a second, from rows in the database to rows marked as delivered, compared with a bare httpx
loop that posts the same bytes to the same receiver, one after the other over one connection.

The receiver is a process of its own, on the other core with PostgreSQL if there are two.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
import time
from ipaddress import ip_network
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import trio

from svc.panel.config import PanelConfig
from svc.service.panel.compose import open_services
from svc_actors.panel import webhooks as endpoints
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.sealing import Sealer
from svc_actors.store import PANEL_SCHEMA, Database, Transaction, embedded, known_migrations, migrate
from svc_actors.webhooks.endpoints import EndpointSecret
from svc_actors.webhooks.settings import WebhookSettings
from tests.support.certificates import self_signed
from tests.support.panel import recorded_host
from tools.benchmarks import Ratio

DELIVERIES: Final = 1000
ROUNDS: Final = 5
GOAL: Final = 0.8
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def measure() -> list[Ratio]:
    cores = sorted(os.sched_getaffinity(0))
    return trio.run(_measure, cores)


async def _measure(cores: list[int]) -> list[Ratio]:
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    certificate = self_signed(folder).certificate
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[1:])  # processes started from here on inherit it
    receiver = subprocess.Popen(
        [sys.executable, "-m", "tools.benchmarks.webhooks", str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert receiver.stdout is not None
        url = f"https://localhost:{int(receiver.stdout.readline())}/hook"
        async with embedded(folder / "postgresql") as database_url, Database.open(database_url) as database:
            await migrate(database, known_migrations(PANEL_SCHEMA))
            os.sched_setaffinity(0, cores[:1])
            settings = WebhookSettings(networks=(ip_network("127.0.0.1"), ip_network("::1")), ca_file=certificate)
            config = PanelConfig(folder, "bench", folder / "core.sock", webhooks=settings)
            ours, peer = [], []
            sealer = Sealer(bytes(32))
            async with open_services(config, database, recorded_host(), sealer=sealer):
                async with database.transaction() as tx:
                    endpoint = await endpoints.create(tx, sealer, url, ["*"], enabled=True)
                for _ in range(ROUNDS):
                    ours.append(await _deliver(database, endpoint))
                    peer.append(await _loop(database, certificate, url))
        return [Ratio("B9 webhook deliveries : bare httpx loop", median(ours), median(peer), "1/s", GOAL, True)]
    finally:
        receiver.kill()
        receiver.wait()


async def _deliver(database: Database, endpoint: EndpointSecret) -> float:
    async def disable(tx: Transaction) -> None:
        await endpoints.update(tx, endpoint.id, url=None, names=None, enabled=False)

    async def enable(tx: Transaction) -> None:
        await endpoints.update(tx, endpoint.id, url=None, names=None, enabled=True)

    async def write(tx: Transaction) -> None:
        await enable(tx)
        for number in range(DELIVERIES):
            await emit(tx, WebhookEvent.SITE_CREATED, data={"number": number})
        await disable(tx)

    await database.transact(write)
    began = time.perf_counter()
    await database.transact(enable)
    while await database.fetchval("SELECT EXISTS (SELECT FROM webhook_deliveries WHERE status <> 'delivered')"):
        await trio.sleep(0.02)
    took = time.perf_counter() - began
    await database.execute("DELETE FROM webhook_deliveries")
    return DELIVERIES / took


async def _loop(database: Database, certificate: Path, url: str) -> float:
    body = await database.fetchval("SELECT body FROM webhook_events LIMIT 1")
    trusted = ssl.create_default_context(cafile=certificate)
    async with httpx.AsyncClient(verify=trusted, trust_env=False) as http:
        began = time.perf_counter()
        for _ in range(DELIVERIES):
            answer = await http.post(url, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 200
        return DELIVERIES / (time.perf_counter() - began)


async def _receive(folder: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listener.socket.getsockname()[1], flush=True)
    await trio.serve_listeners(_answer, [trio.SSLListener(listener, tls)])


async def _answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
    read = b""
    try:
        while True:
            head, found, rest = read.partition(b"\r\n\r\n")
            if found:
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                if len(rest) >= length:
                    read = rest[length:]
                    await stream.send_all(_ANSWER)
                    continue
            chunk = await stream.receive_some()
            if not chunk:
                return
            read += chunk
    except trio.BrokenResourceError:
        return


if __name__ == "__main__":
    trio.run(_receive, Path(sys.argv[1]))
