"""The controller at the size of a provider: creations, other people's requests beside them, and lists.

    tools/bench scale [--nodes 1000] [--machines 100000] [--seconds 20] [--clients 100]

The whole service runs as it would (HTTPS, controller, PostgreSQL); its nodes are simulated agents that do at once what
they are told. B13 compares creations with the same at ten nodes, B17 orders of a billing system with creations there.
Machines that are there already are rows, made by SQL: no host has them, and since none was ever built, no inventory
misses them. Printed of each round:

- creations: how many clients' orders were accepted a second, how long one took, how many were refused and how, what
  one cost in processor time with its task: of the controller alone, and of PostgreSQL. Nodes, clients and the database
  are processes of their own on the same machine;
- beside them: how long others wait meanwhile for their own account and for a page of machines;
- without the database: how long a request waits that asks it for nothing, so that only a held-up event loop delays it;
  and the longest pause of a garbage collection since the service began.

Each round of creations begins with a few seconds that do not count: every connection plans its statements anew for the
first five times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import trio
from rich.console import Console
from rich.table import Table

from svc_actors.store import Database, embedded
from tests.support.image_paths import IMAGES
from tests.support.large import indexes_later
from tests.support.stack import ROOT, Program, Stack
from tools.benchmarks import Ratio

FEW_NODES: Final = 10
SETTLE_SECONDS: Final = 10.0
"""By then, requests to nodes that have just joined are done."""
REST_SECONDS: Final = 10.0
JOINING_SECONDS: Final = 180.0
SETTLING_SECONDS: Final = 120.0
WARMING_SECONDS: Final = 6.0
_FILLING_SECONDS: Final = 300.0

_MACHINES: Final = """
WITH node AS (SELECT array_agg(id ORDER BY name) AS ids FROM nodes WHERE deleted_at IS NULL)
INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status, access_mode,
                 created_at, net_applied)
SELECT 'row-' || number, 'row-' || number, $2::uuid, node.ids[1 + number % cardinality(node.ids)], $3::uuid,
       1 + number % 4, 64 * (1 + number % 8), 1, CASE WHEN number % 5 = 0 THEN 'stopped' ELSE 'running' END,
       'user_sudo', now() - number * interval '1 second', 1
FROM generate_series(1, $1::integer) AS number, node"""
_NICS: Final = """
INSERT INTO nics (vm_id, network_id, position, mac)
SELECT vms.id, networks.id, 0, ('0200' || lpad(to_hex(row_number() OVER ()), 8, '0'))::macaddr
FROM vms, networks WHERE vms.name LIKE 'row-%' AND networks.name = 'scale'"""
_ADDRESSES: Final = """
INSERT INTO allocations (pool_id, slot, ip, state, vm_id, nic_id, is_primary)
SELECT pools.id, held.slot, pool_address(pools.cidr, pools.prefix_len, held.slot), 'allocated', held.vm_id, held.id,
       true
FROM pools JOIN (
    SELECT nics.*, pools.last_slot - row_number() OVER () AS slot
    FROM nics JOIN vms ON vms.id = nics.vm_id, pools WHERE vms.name LIKE 'row-%' AND pools.name = 'scale'
) held ON pools.name = 'scale'"""

say = Console(stderr=True, highlight=False).print


@dataclass(frozen=True)
class Size:
    """The measured size: so many nodes and machines, and creations by so many clients for so many seconds."""

    nodes: int = 1000
    machines: int = 100_000
    clients: int = 100
    seconds: float = 20.0


@dataclass
class Times:
    """The times of some requests, in seconds."""

    taken: list[float] = field(default_factory=list)

    def share(self, share: float) -> float:
        """The time that this share of the requests did not exceed; 0 without requests."""
        ordered = sorted(self.taken)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0

    def __str__(self) -> str:
        return f"p50 {self.share(0.5) * 1e3:,.0f}, p99 {self.share(0.99) * 1e3:,.0f}, max {self.share(1) * 1e3:,.0f} ms"


@dataclass
class Round:
    """One round of creations, or of idling, and how long others had to wait meanwhile."""

    name: str
    seconds: float = 0.0
    creations: Times = field(default_factory=Times)
    refused: Counter[str] = field(default_factory=Counter)
    built: float = 0.0
    """Machines a second, from the first order to the end of the last task."""
    processor: float = 0.0
    """Seconds that the controller's process used, from the first order to the end of the last task."""
    postgresql: float = 0.0
    """The same of PostgreSQL's processes."""
    pause: float = 0.0
    """Seconds of the service's longest garbage collection up to the end of the round."""
    me: Times = field(default_factory=Times)
    machines: Times = field(default_factory=Times)
    loop: Times = field(default_factory=Times)

    @property
    def rate(self) -> float:
        return len(self.creations.taken) / self.seconds if self.seconds else 0.0

    def row(self) -> tuple[str, ...]:
        made = len(self.creations.taken)
        ordered = f"{self.rate:,.1f}/s ({self.built:,.1f}/s built)" if made else ""
        parts = self.processor, self.postgresql
        each = " + ".join(f"{part / made * 1e3:,.1f} ms" if made else f"{part / self.seconds:.0%}" for part in parts)
        refused = ", ".join(f"{count} {code}" for code, count in self.refused.items()) or "none"
        times = str(self.creations) if made else ""
        pause = f"{self.pause * 1e3:,.0f} ms"
        return self.name, ordered, times, refused, each, str(self.me), str(self.machines), str(self.loop), pause


COLUMNS: Final = (
    "round",
    "creations",
    "one takes",
    "refused",
    "service + PostgreSQL",
    "GET /me",
    "GET /vms",
    "without the database",
    "garbage",
)


class Caller:
    """One keep-alive connection to the API, with as little work a request as possible: the figures should be the
    service's."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._stream: trio.SSLStream[trio.SocketStream] | None = None
        self._unread = b""

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """The status and the body of the answer. Connects (again) if the service has closed the connection."""
        content = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
        if self._stream is None:
            self._stream = await self._connect()
        await self._stream.send_all(head.encode() + content)
        return await self._answer()

    async def aclose(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
            self._stream = None

    async def _connect(self) -> trio.SSLStream[trio.SocketStream]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        tcp = await trio.open_tcp_stream("127.0.0.1", self._port)
        stream = trio.SSLStream(tcp, context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        return stream

    async def _answer(self) -> tuple[int, bytes]:
        while b"\r\n\r\n" not in self._unread:
            await self._read()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        length = int(headers[b"content-length"])
        while len(self._unread) < length:
            await self._read()
        body, self._unread = self._unread[:length], self._unread[length:]
        if headers.get(b"connection", b"").lower() == b"close":
            await self.aclose()
        return int(status.split()[1]), body

    async def _read(self) -> None:
        assert self._stream is not None
        received = await self._stream.receive_some(65536)
        if not received:
            raise ConnectionResetError("the service closed the connection in the middle of an answer")
        self._unread += bytes(received)


@dataclass
class Deployment:
    """A controller with simulated nodes, all connected and with the image that machines are created from."""

    stack: Stack
    database: Database
    size: Size
    order: dict[str, Any] = field(default_factory=dict)
    provision: dict[str, Any] = field(default_factory=dict)

    def caller(self) -> Caller:
        return Caller(self.stack.api_port, self.stack.token or "")

    def processor_seconds(self) -> tuple[float, float]:
        """The processor time of the controller's process and PostgreSQL's since their start, including ended ones: a
        busy machine changes that little."""
        assert self.stack.controller.process is not None
        postmaster = int((self.stack.folder / "postgresql/cluster/postmaster.pid").read_text().split("\n", 1)[0])
        stats = {int(path.parent.name): _stat(path) for path in Path("/proc").glob("[0-9]*/stat")}
        service = stats[self.stack.controller.process.pid]
        backends = [stat for stat in stats.values() if stat and int(stat[1]) == postmaster]
        ended = stats[postmaster][13:15]
        ticks = sum(int(each) for stat in (*backends, stats[postmaster]) for each in stat[11:13])
        ticks += sum(int(each) for each in ended)
        second = os.sysconf("SC_CLK_TCK")
        return sum(int(each) for each in service[11:13]) / second, ticks / second

    async def longest_pause(self) -> float:
        """The service's gauge of garbage collections, in seconds."""
        async with httpx.AsyncClient() as http:
            metrics = (await http.get(f"http://127.0.0.1:{self.stack.operations_port}/metrics")).text
        [line] = [line for line in metrics.splitlines() if line.startswith("svc_garbage_longest_pause_seconds ")]
        return float(line.split()[1])

    async def prepare(self) -> None:
        """An image that every node has, and a network with room for everybody."""
        words = {"slug": "scale", "name": "Scale", "distribution": "none", "release": "1"}
        image = await self.stack.import_image(IMAGES / "demo.qcow2", **words)
        async with self.stack.client() as client:
            network = {"name": "scale", "default": True, "pool": {"name": "scale", "cidr": "100.64.0.0/10"}}
            await client.call("POST", "/networks", body=network)
            [project] = (await client.call("GET", "/projects"))["items"]
            size = {"vcpus": 1, "memory_mib": 64, "disk_gib": 1}
            await client.call("POST", "/plans", body={"name": "Scale", "slug": "scale", **size})
        ssh_keys = ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIn8tAX4S7Gx2E9rO0VvE7E4m9g9sS0l0fYQyJ8pJ1aB scale"]
        self.provision = {
            "integration": "scale",
            "customer_name": "Scale",
            "plan_slug": "scale",
            "image_slug": "scale",
            "access_mode": "root_key",
            "ssh_keys": ssh_keys,
        }
        self.order = {
            "image_id": image["id"],
            "project_id": project["id"],
            "access_mode": "root_key",
            "ssh_keys": ssh_keys,
            **size,
        }
        await self.until(
            "SELECT count(*) FROM nodes WHERE state = 'online' AND inventory_at IS NOT NULL", JOINING_SECONDS
        )
        await self.database.execute("UPDATE nodes SET cpu_overcommit = 1000, memory_overcommit = 100")
        # As if each had pulled it: that happens once a node and image, and is not measured.
        await self.database.execute(
            """INSERT INTO node_images (node_id, image_id, digest, size_bytes, pulled_at)
               SELECT nodes.id, images.id, images.digest, images.size_bytes, now() FROM nodes, images
               WHERE images.id = $1""",
            UUID(image["id"]),
        )

    async def until(self, count: str, seconds: float) -> None:
        """Wait until this query counts as many as there are nodes."""
        with trio.fail_after(seconds):
            while await self.database.fetchval(count) < self.size.nodes:
                await trio.sleep(0.2)

    async def settled(self) -> None:
        """Wait until every task has ended."""
        with trio.fail_after(SETTLING_SECONDS):
            while await self.database.fetchval("SELECT count(*) FROM tasks WHERE status IN ('queued', 'running')"):
                await trio.sleep(0.1)

    async def add_machines(self) -> None:
        """Rows of machines, with a NIC and an address each, spread over the nodes and created a second apart."""
        async with indexes_later(self.database, of=("vms", "vm_texts", "nics", "allocations")):
            of_machines = self.size.machines, self.order["project_id"], self.order["image_id"]
            await self.database.execute(_MACHINES, *of_machines, timeout=_FILLING_SECONDS)
            await self.database.execute(_NICS, timeout=_FILLING_SECONDS)
            await self.database.execute(_ADDRESSES, timeout=_FILLING_SECONDS)
        await self.database.execute("VACUUM ANALYZE", timeout=_FILLING_SECONDS)


def _stat(path: Path) -> list[str]:
    """The fields of a process after its name; empty if it has ended meanwhile."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@asynccontextmanager
async def open_deployment(size: Size) -> AsyncIterator[Deployment]:
    """A controller on a database of its own, with its nodes; everything is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="svc-scale-", dir="/var/lib"))
    folder.chmod(0o755)
    stack = Stack(folder)
    try:
        async with embedded(folder / "postgresql") as url, Database.open(url, size=2) as database:
            stack.controller.environment["SVC_DATABASE_URL"] = url
            try:
                await stack.start_controller()
                await stack.set_up()
                async with _simulated_nodes(stack, size.nodes):
                    deployment = Deployment(stack, database, size)
                    await deployment.prepare()
                    yield deployment
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                    if stack.controller.running():
                        await stack.controller.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _simulated_nodes(stack: Stack, count: int) -> AsyncIterator[None]:
    command = [
        *(str(ROOT / "tools" / "simulate-nodes"), str(count), "--controller", stack.url),
        *("--ca", str(stack.controller_data / "tls" / "authority.pem")),
        *("--data", str(stack.folder / "nodes")),
    ]
    nodes = Program("nodes", command, stack.folder / "nodes.log", {"SVC_TOKEN": stack.token or ""})
    nodes.start()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 40):
            await nodes.kill()


def by_a_person(deployment: Deployment, name: str, client: int) -> tuple[str, dict[str, Any]]:
    return "/api/v1/vms", deployment.order | {"name": name}


def by_a_billing_system(deployment: Deployment, name: str, client: int) -> tuple[str, dict[str, Any]]:
    """Each client orders for one customer, whom its first order creates."""
    own = {"idempotency_key": name, "external_ref": name, "customer_email": f"scale-{client}@example.com", "name": name}
    return "/api/v1/provision/services", deployment.provision | own


Order = Callable[[Deployment, str, int], tuple[str, dict[str, Any]]]


async def creations(deployment: Deployment, name: str, order: Order = by_a_person) -> Round:
    """So many clients order machine after machine, each the next one when it has its answer."""
    await order_machines(deployment, Round("warming up"), WARMING_SECONDS, order)
    await deployment.settled()
    found = Round(name)
    began, used = perf_counter(), deployment.processor_seconds()
    async with beside(deployment, found):
        await order_machines(deployment, found, deployment.size.seconds, order)
    found.seconds = perf_counter() - began
    await deployment.settled()
    found.built = len(found.creations.taken) / (perf_counter() - began)
    await _note_costs(deployment, found, used)
    return found


async def order_machines(deployment: Deployment, found: Round, seconds: float, order: Order) -> None:
    prefix, until = f"scale-{uuid4().hex[:6]}", perf_counter() + seconds

    async def client(number: int) -> None:
        caller, made = deployment.caller(), 0
        while perf_counter() < until:
            made += 1
            began = perf_counter()
            status, body = await caller.call("POST", *order(deployment, f"{prefix}-{number}-{made}", number))
            if status == 201:
                found.creations.taken.append(perf_counter() - began)
            else:
                found.refused[json.loads(body)["error"]["code"]] += 1
        await caller.aclose()

    async with trio.open_nursery() as nursery:
        for number in range(deployment.size.clients):
            nursery.start_soon(client, number)


async def rest(deployment: Deployment, name: str) -> Round:
    """Nobody orders anything. The cost of idling is measured first, then how long readers wait: they send a hundred
    requests a second."""
    await trio.sleep(SETTLE_SECONDS)
    found, used = Round(name, REST_SECONDS), deployment.processor_seconds()
    await trio.sleep(REST_SECONDS)
    await _note_costs(deployment, found, used)
    async with beside(deployment, found):
        await trio.sleep(REST_SECONDS)
    return found


async def _note_costs(deployment: Deployment, found: Round, before: tuple[float, float]) -> None:
    after = deployment.processor_seconds()
    found.processor, found.postgresql = after[0] - before[0], after[1] - before[1]
    found.pause = await deployment.longest_pause()


@asynccontextmanager
async def beside(deployment: Deployment, found: Round) -> AsyncIterator[None]:
    """For the length of the block, read an account, a page of machines, and a URL that needs no database."""
    reads: Sequence[tuple[str, float, Times]] = (
        ("/api/v1/me", 0.05, found.me),
        ("/api/v1/vms", 0.2, found.machines),
        ("/api/v1/nowhere", 0.01, found.loop),
    )
    async with trio.open_nursery() as nursery:
        for path, pause, times in reads:
            nursery.start_soon(_read_for_ever, deployment.caller(), path, pause, times)
        yield
        nursery.cancel_scope.cancel()


async def _read_for_ever(caller: Caller, path: str, pause: float, times: Times) -> None:
    await caller.call("GET", path)  # the handshake is not measured
    while True:
        began = perf_counter()
        status, _ = await caller.call("GET", path)
        times.taken.append(perf_counter() - began)
        if status >= 500:
            say(f"{path} was answered with {status}", style="red")
        await trio.sleep(pause)


async def measure_scale(size: Size) -> tuple[list[Round], list[Ratio]]:
    rounds: list[Round] = []

    async def take(measured: Callable[[Deployment, str], Awaitable[Round]], deployment: Deployment, name: str) -> Round:
        say(f"measuring {name} ...", style="dim")
        rounds.append(await measured(deployment, name))
        return rounds[-1]

    async with open_deployment(Size(FEW_NODES, 0, size.clients, size.seconds)) as deployment:
        few = await take(creations, deployment, f"{FEW_NODES} nodes, creations")
        billed = partial(creations, order=by_a_billing_system)
        provisioned = await take(billed, deployment, f"{FEW_NODES} nodes, orders of a billing system")
    async with open_deployment(size) as deployment:
        await take(rest, deployment, f"{size.nodes:,} nodes, at rest")
        many = await take(creations, deployment, f"{size.nodes:,} nodes, creations")
        filling = perf_counter()
        await deployment.add_machines()
        say(f"filled in {perf_counter() - filling:.0f} s", style="dim")
        await take(rest, deployment, f"{size.machines:,} machines, at rest")
        await take(creations, deployment, f"{size.machines:,} machines, creations")
    b13 = f"B13 creations at {size.nodes:,} nodes : at {FEW_NODES}"
    b17 = "B17 orders of a billing system : creations"
    return rounds, [
        Ratio(b13, many.rate, few.rate, "a second", 0.9, True),
        Ratio(b17, provisioned.rate, few.rate, "a second", 0.8, True),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=Size.nodes)
    parser.add_argument("--machines", type=int, default=Size.machines)
    parser.add_argument("--clients", type=int, default=Size.clients)
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="how long each round of creations lasts")
    options = parser.parse_args(arguments)
    size = Size(options.nodes, options.machines, options.clients, options.seconds)
    began = perf_counter()
    rounds, ratios = trio.run(measure_scale, size)
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for each in rounds:
        table.add_row(*each.row())
    console = Console(highlight=False, width=max(200, int(os.environ.get("COLUMNS", "0"))))
    console.print(table)
    for ratio in ratios:
        console.print(
            f"{ratio.name}: {ratio.ours:,.4g} : {ratio.peer:,.4g} {ratio.unit} = {ratio.ratio:.2f} (goal {ratio.goal})"
        )
    console.print(f"all of it took {perf_counter() - began:.0f} s", style="dim")


if __name__ == "__main__":
    main()
