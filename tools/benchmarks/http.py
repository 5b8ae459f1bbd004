"""B1 and B4: a machine over HTTPS compared with a bare route, and a list compared with its SQL.

Servers run in processes of their own, pinned to one core if there are two; the client has the other. Turns alternate,
and the median counts. Run as `python -m tools.benchmarks.http`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import httpx
import trio
from pydantic_core import to_json

from svc.controller.catalogue import controller_registry
from svc.controller.machines.models import VM_SELECT
from svc.controller.realm import REALM
from svc.controller.services import Controller
from svc.identity.authenticate import Authentication
from svc.service.garbage import GarbageCollection
from svc_actors.sealing import Sealer
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, embedded, migrate
from svc_actors.store.counts import fold
from svc_http.app import App, create_app
from svc_http.certificates import Certificates, TlsFiles
from svc_http.server import serve_https
from tests.support.certificates import self_signed
from tools.benchmarks import Ratio

ROUNDS = 5
WRK_SECONDS = 3
CONNECTIONS = 8
MACHINES = 10_000
LISTS = 30


def measure() -> list[Ratio]:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})  # with PostgreSQL and wrk, which inherit it; the servers have the other core
    return trio.run(_measure)


async def _measure() -> list[Ratio]:
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    self_signed(folder)
    async with embedded(folder / "postgresql") as url, Database.open(url) as database:
        await migrate(database)
        token, vm_id = await seed(database)
        return [
            await _measure_route(folder, url, token, vm_id),
            await _measure_list(database, token),
        ]


async def _measure_route(folder: Path, url: str, token: str, vm_id: UUID) -> Ratio:
    ours, peer = [], []
    async with serving("ours", folder, url) as own, serving("bare", folder, url) as bare:
        for _ in range(ROUNDS):
            ours.append(await _wrk(f"https://127.0.0.1:{own}/api/v1/vms/{vm_id}", token))
            peer.append(await _wrk(f"https://127.0.0.1:{bare}/", token))
    return Ratio("B1 authenticated GET /vms/{id} : bare route", median(ours), median(peer), "requests/s", 0.7, True)


async def _measure_list(database: Database, token: str) -> Ratio:
    """Both run in this process: the whole application from ASGI on, and the same two statements with JSON encoding."""
    app = _application(database)
    transport = httpx.ASGITransport(app=cast(Any, app))
    ours, peer = [], []
    async with httpx.AsyncClient(transport=transport, base_url="https://bench") as http:
        headers = {"Authorization": f"Bearer {token}"}

        async def listed() -> None:
            answer = await http.get("/api/v1/vms", headers=headers)
            assert len(answer.json()["items"]) == 50

        for _ in range(ROUNDS):
            ours.append(await _time(listed))
            peer.append(await _time(partial(_raw_list, database)))
    return Ratio("B4 GET /vms, 50 of 10,000 : raw SQL and JSON", median(ours), median(peer), "s", 2.0, False)


async def _raw_list(database: Database) -> None:
    where = "WHERE vms.deleted_at IS NULL"
    rows = await database.fetch(f"{VM_SELECT} {where} ORDER BY vms.created_at DESC, vms.id DESC LIMIT 50")
    total = await database.fetchval(f"SELECT count(*) FROM vms {where}")
    json.loads(to_json({"items": [dict(row) for row in rows], "total": total}, fallback=str))


async def _time(work: Callable[[], Awaitable[None]]) -> float:
    await work()
    began = perf_counter()
    for _ in range(LISTS):
        await work()
    return (perf_counter() - began) / LISTS


async def _wrk(url: str, token: str) -> float:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{WRK_SECONDS}s", "-H", f"Authorization: Bearer {token}", url]
    done = await trio.run_process(command, capture_stdout=True)
    output = done.stdout.decode()
    assert "Non-2xx" not in output, output
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found is not None, output
    return float(found[1])


def _pinned(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if (os.cpu_count() or 1) > 1 else command


@asynccontextmanager
async def serving(kind: str, folder: Path, url: str) -> AsyncIterator[int]:
    """The port of a server process of this module."""
    command = _pinned(0, [sys.executable, "-m", "tools.benchmarks.http", kind, str(folder), url])
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield int((await process.stdout.receive_some(20)).decode())
    finally:
        process.terminate()
        await process.wait()


def _application(database: Database) -> App:
    services = SimpleNamespace(database=database, sealer=Sealer(bytes(32)), realm=REALM)
    return create_app(
        controller_registry(),
        cast(Controller, services),
        authenticator=Authentication(database, REALM),
        origins=("https://bench",),
    )


async def _serve(kind: str, folder: Path, url: str) -> None:
    from svc_http.logs import configure

    configure()
    async with Database.open(url) as database, GarbageCollection.open(), trio.open_nursery() as nursery:
        app = _bare() if kind == "bare" else _application(database)
        tls = TlsFiles(folder / "certificate.pem", folder / "key.pem")
        [bind] = await nursery.start(partial(serve_https, app, ["127.0.0.1:0"], Certificates(tls), trio.Event()))
        print(int(bind.rpartition(":")[2]), flush=True)


def _bare() -> App:
    """The peer of B1: Quart-Trio with one route that answers JSON, and hypercorn configured as ours is."""
    from quart_trio import QuartTrio

    app = QuartTrio("bare")
    app.streams = SimpleNamespace(run=trio.sleep_forever, stop=lambda: None)  # type: ignore[attr-defined]

    @app.route("/")
    async def answer() -> dict[str, object]:
        return {"id": "x", "name": "machine", "status": "running"}

    return cast(App, app)


async def seed(database: Database) -> tuple[str, UUID]:
    """An administrator's token, and ten thousand machines; returns one of their ids."""
    token = new_secret(REALM.token_prefix)
    user = await database.fetchval(
        "INSERT INTO users (email, name, role) VALUES ('root@bench', 'Root', 'administrator') RETURNING id"
    )
    await database.execute(
        "INSERT INTO api_tokens (token_hash, last_four, user_id, name, scopes) VALUES ($1, 'xxxx', $2, 't', '{admin}')",
        fingerprint(token),
        user,
    )
    vm_id: UUID = await database.fetchval(
        """
        WITH location AS (INSERT INTO locations (name) VALUES ('bench') RETURNING id),
        node AS (
            INSERT INTO nodes (name, location_id, state, host_uuid)
            SELECT 'bench', id, 'online', gen_random_uuid() FROM location RETURNING id
        ),
        project AS (INSERT INTO projects (name) VALUES ('bench') RETURNING id),
        image AS (
            INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
            VALUES ('bench', 'Bench', 'linux', 'debian', '12', 'debian', 'qcow2', 'file', true) RETURNING id
        ),
        made AS (
            INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                             access_mode, created_at)
            SELECT 'vm' || number, 'vm' || number, project.id, node.id, image.id, 1, 1024, 10, 'running', 'user_sudo',
                   now() - number * interval '1 second'
            FROM generate_series(1, $1) AS number, project, node, image RETURNING id
        )
        SELECT id FROM made LIMIT 1
        """,
        MACHINES,
    )
    # A service keeps its counts folded; 10,000 machines created at once leave more changes than it ever has open.
    await fold(database)
    await database.execute("ANALYZE")
    return token, vm_id


def main() -> None:
    if len(sys.argv) == 4:
        trio.run(_serve, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
        return
    for row in measure():
        print(f"{row.name}: {row.ours:,.4g} : {row.peer:,.4g} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main()
