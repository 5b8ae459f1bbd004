"""N1 and N2: what one vm.net.apply costs as its host fills, and one rule for a thousand machines.

Run as `python -m tools.benchmarks.networking`. The controller runs whole but for its listener, on a PostgreSQL of its
own with its disk's real fsync; the hosts are simulated and run as agents in a process of their own, over mutual TLS. So
the figures are the controller's, the gateway's and the agent's journal; what a kernel takes is measured elsewhere
(`tools/benchmarks/host_network.py`). A rule is applied when every host's answer is in the record. Turns of the three
hosts alternate, and the median counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import UUID, uuid4

import trio

from svc.cli.controller_services import open_services
from svc.controller.config import ControllerConfig
from svc.controller.networking import security_groups
from svc.controller.networking.security_group_models import RuleCreateRequest
from svc.controller.services import Controller
from svc_actors.controller.machines.spec import network_spec
from svc_actors.controller.networking.addresses import allocate, new_nic
from svc_actors.controller.networking.changes import network_applied, network_changed
from svc_actors.controller.networking.security_groups import Action, Direction, TransportProtocol, create_group
from svc_actors.controller.nodes.records import NodeState
from svc_actors.store import Database, Transaction, embedded, migrate
from svc_nodeagent.agent import Agent, OpenHost
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.host import Host, OpenStream
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import DomainState, NetworkResult, OperationId, VmNetApply
from svc_nodeagent.simulated import SimulatedHost, SimulatedMachine
from tests.support.node_api import NodeApiHarness
from tools.benchmarks import Ratio

SIZES = (10, 100, 1000)
SINGLES = 25
RULES = 5
FIRST_PORT = 8000
DEADLINE_SECONDS = 300.0

_MACHINES_FILE = "machines.json"


@contextmanager
def _agents(folders: Sequence[Path]) -> Iterator[None]:
    """The agents of these folders, in one process of their own; killed at the end."""
    command = [sys.executable, "-m", "tools.benchmarks.networking", *map(str, folders)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _run_agents(folders: Sequence[Path]) -> None:
    async with trio.open_nursery() as nursery:
        for folder in map(AgentFolder, folders):
            agent = Agent(folder, Journal.open(folder.journal))
            nursery.start_soon(agent.run, _opener(folder))


def _opener(folder: AgentFolder) -> OpenHost:
    @asynccontextmanager
    async def open_host(_: OpenStream) -> AsyncIterator[Host]:
        ids = [UUID(text) for text in json.loads((folder.path / _MACHINES_FILE).read_text())]
        async with SimulatedHost(folder.path.name, uuid4(), machines={vm_id: _guest(vm_id) for vm_id in ids}) as host:
            yield host

    return open_host


def _guest(vm_id: UUID) -> SimulatedMachine:
    return SimulatedMachine(
        vm_id=vm_id,
        name=f"m-{vm_id}",
        vcpus=1,
        memory_mib=256,
        state=DomainState.RUNNING,
        started_at=datetime.now(UTC),
    )


def _config(folder: Path) -> ControllerConfig:
    return ControllerConfig(data_dir=folder, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)


async def _machines(tx: Transaction, node_id: UUID, count: int) -> list[UUID]:
    """Machines on a node, running, each with an address, as if made long ago."""
    network_id = await tx.fetchval('SELECT id FROM networks WHERE "default"')
    pool_id = await tx.fetchval("SELECT id FROM pools WHERE network_id = $1", network_id)
    rows = await tx.fetch(
        """INSERT INTO vms (name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status, observed_state,
                            access_mode, built_at, node_id, net_applied)
           SELECT 'm-' || $1 || '-' || n, 'm', (SELECT id FROM projects LIMIT 1), (SELECT id FROM images LIMIT 1),
                  1, 256, 1, 'running', 'running', 'user_sudo', now(), $1::uuid, 1
           FROM generate_series(1, $2::int) AS n RETURNING id""",
        str(node_id),
        count,
    )
    for row in rows:
        nic_id = await new_nic(tx, vm_id=row["id"], network_id=network_id, position=0)
        await allocate(tx, pool_id, vm_id=row["id"], nic_id=nic_id, primary=True)
    return [row["id"] for row in rows]


async def _until_applied(database: Database, vm_ids: Sequence[UUID], pause: float) -> None:
    with trio.fail_after(DEADLINE_SECONDS):
        while await database.fetchval(
            "SELECT count(*) FROM vms WHERE id = ANY($1::uuid[]) AND net_applied < net_wanted", vm_ids
        ):
            await trio.sleep(pause)


async def _one_apply(services: Controller, node_id: UUID, vm_id: UUID) -> float:
    """What the network watch does for one machine: read what it shall have, have the host apply it, record its word."""
    operation_id = OperationId(f"bench:{uuid4()}")
    began = perf_counter()
    operation = VmNetApply(vm_id=vm_id, network=await network_spec(services.database, vm_id))
    result = await services.gateway.perform(node_id, operation_id, operation, timeout=DEADLINE_SECONDS)
    if not isinstance(result, NetworkResult):
        raise TypeError(f"vm.net.apply was answered with {result!r}")
    async with services.database.transaction() as tx:
        await network_applied(tx, vm_id, result.generation)
    await services.gateway.acknowledge(node_id, operation_id)
    return perf_counter() - began


async def _one_rule(site: NodeApiHarness, group_id: UUID, port: int, vm_ids: Sequence[UUID]) -> float:
    request = RuleCreateRequest(
        id=group_id, direction=Direction.INGRESS, protocol=TransportProtocol.TCP, port_from=port
    )
    began = perf_counter()
    await security_groups.create_rule(site.context, request)
    await _until_applied(site.services.database, vm_ids, 0.02)
    return perf_counter() - began


async def _hosts(site: NodeApiHarness) -> tuple[list[Path], dict[int, UUID], dict[int, list[UUID]]]:
    """A host for each size, with its machines in the records and in its own folder."""
    database = site.services.database
    await database.execute("INSERT INTO projects (name) VALUES ('bench')")
    folders: list[Path] = []
    nodes: dict[int, UUID] = {}
    machines: dict[int, list[UUID]] = {}
    for size in SIZES:
        node = await site.join(await site.bootstrap(f"host-{size}"))
        async with database.transaction() as tx:
            machines[size] = await _machines(tx, node.node_id, size)
        (node.folder.path / _MACHINES_FILE).write_text(json.dumps([str(vm_id) for vm_id in machines[size]]))
        folders.append(node.folder.path)
        nodes[size] = node.node_id
    return folders, nodes, machines


async def _measure() -> list[Ratio]:
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with embedded(folder / "postgresql") as url, Database.open(url, size=16) as database:
            await migrate(database)
            async with open_services(_config(folder), database) as services:
                singles, rules = await _applied(NodeApiHarness(services, folder))
    few, some, many = (median(singles[size]) for size in SIZES)
    return [
        Ratio("N1 vm.net.apply beside 100 machines : beside 10", some, few, "s", 1.2, False),
        Ratio("N1 vm.net.apply beside 1,000 machines : beside 10", many, few, "s", 1.2, False),
        Ratio("N2 a rule for 1,000 machines : 1,000 applied in turn", median(rules), SIZES[-1] * many, "s", 1.0, False),
    ]


async def _applied(site: NodeApiHarness) -> tuple[dict[int, list[float]], list[float]]:
    """Seconds of one machine's apply by the size of its host, and of a rule's for all of the largest one."""
    database = site.services.database
    singles: dict[int, list[float]] = {size: [] for size in SIZES}
    rules: list[float] = []
    folders, nodes, machines = await _hosts(site)
    with _agents(folders):
        for node_id in nodes.values():
            await site.until_state(node_id, NodeState.ONLINE)
        everybody = [vm_id for own in machines.values() for vm_id in own]
        crowd = machines[SIZES[-1]]
        async with database.transaction() as tx:
            group = await create_group(
                tx,
                name="bench",
                description="",
                project_id=None,
                default_ingress=Action.DROP,
                default_egress=Action.ACCEPT,
            )
            await tx.execute(
                "INSERT INTO security_group_machines (vm_id, group_id) SELECT unnest($1::uuid[]), $2",
                crowd,
                group["id"],
            )
            await network_changed(tx, everybody)
        await _until_applied(database, everybody, 0.02)
        for turn in range(SINGLES):
            for size in SIZES:
                singles[size].append(await _one_apply(site.services, nodes[size], machines[size][turn % size]))
        for turn in range(RULES):
            rules.append(await _one_rule(site, group["id"], FIRST_PORT + turn, crowd))
    return singles, rules


def measure() -> list[Ratio]:
    return trio.run(_measure)


if __name__ == "__main__":
    if sys.argv[1:]:
        trio.run(_run_agents, [Path(text) for text in sys.argv[1:]])
    else:
        for row in measure():
            print(f"{row.name}: {row.ours:.4f} / {row.peer:.4f} {row.unit} = {row.ratio:.2f}")
