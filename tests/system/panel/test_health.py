"""Real faults of real programs: the check of each becomes critical, is told once, and is well again afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from svc_actors.panel.health import CheckName
from svc_actors.panel.health import checks as checks_module
from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.checks import Checks, Levels
from svc_actors.panel.health.watch import BETTER_LOOKS, WORSE_LOOKS, HealthWatch
from svc_actors.store import Database
from svc_webhost.databases import EngineKind
from svc_webhost.launcher import Launcher, ServiceName, ServiceStatus
from svc_webhost.nginx.program import NGINX
from svc_webhost.vitals import SystemVitals
from tests.support.databases import SERVICES, Engines, engines_in, engines_of_a_module
from tests.support.knot import RealKnot, real_knot
from tests.support.nginx import Sites, nginx_sites
from tests.support.postgres_proxy import proxy_to

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB = 1 << 20


@dataclass
class Launched:
    """What runs, each by a launcher of its own."""

    knot: RealKnot
    sites: Sites
    engines: Engines

    async def names(self) -> frozenset[ServiceName]:
        names = await self.knot.launcher.names() | await self.engines.launcher.names()
        return names | self.sites.launcher.services.keys()

    async def status(self, name: ServiceName) -> ServiceStatus:
        return await self._launcher(name).status(name)

    def _launcher(self, name: ServiceName) -> Launcher:
        if name in SERVICES.values():
            return self.engines.launcher
        return self.sites.launcher if name == NGINX else self.knot.launcher


@dataclass
class Server:
    """`watch` believes and tells, as the panel has it."""

    database: Database
    watch: HealthWatch
    knot: RealKnot
    sites: Sites
    engines: Engines
    disk: Path

    async def looks(self, number: int) -> None:
        for _ in range(number):
            await self.watch.round()

    async def status(self, check: CheckName) -> tuple[str, str]:
        row = await self.database.fetchone("SELECT status, message FROM health_checks WHERE name = $1", check)
        return row["status"], row["message"]

    async def told(self, check: CheckName) -> int:
        """How often that it is critical."""
        found: int = await self.database.fetchval(
            """SELECT count(*) FROM webhook_events WHERE event = 'health.critical'
               AND convert_from(body, 'UTF8')::jsonb->'data'->>'check' = $1""",
            check,
        )
        return found

    async def alerts(self) -> list[str]:
        rows = await self.database.fetch("SELECT key FROM alerts WHERE key LIKE 'health:%' AND closed_at IS NULL")
        return [row["key"] for row in rows]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB and 100 inodes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=100", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def engines() -> Iterator[Engines]:
    with engines_of_a_module() as folder:
        yield engines_in(folder)


@pytest.fixture
async def server(
    panel_database: Database, engines: Engines, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    # A server that hangs is asked five times in a row.
    monkeypatch.setattr(checks_module, "ANSWER_SECONDS", Levels(0.5, 1, 0.25))
    with nginx_sites() as sites:
        async with real_knot() as knot:
            await sites.generations.start([])
            launched = Launched(knot, sites, engines)
            busiest = TopConsumers(panel_database, SystemVitals(), engines.servers, {}, ())
            checks = Checks(
                panel_database,
                launched,  # type: ignore[arg-type]
                knot.server,
                SystemVitals(),
                engines.servers,
                disk,
                busiest,
                relay=True,
            )
            wanted = {CheckName.DISK, CheckName.INODES, CheckName.SERVICES, CheckName.DNS}
            watch = HealthWatch(panel_database, {name: check for name, check in checks.all().items() if name in wanted})
            yield Server(panel_database, watch, knot, sites, engines, disk)


async def test_each_fault_is_one_incident_and_over_when_it_is_mended(server: Server) -> None:
    await server.looks(1)
    well = [await server.status(check) for check in server.watch.checks]
    assert {status for status, _ in well} == {"ok"}, well

    for check, words, inject, mend in FAULTS:
        await inject(server)
        await server.looks(WORSE_LOOKS)
        status, message = await server.status(check)
        await server.looks(BETTER_LOOKS)
        lasting, told, alerts = await server.status(check), await server.told(check), await server.alerts()
        await mend(server)
        await server.looks(BETTER_LOOKS)
        after, left = await server.status(check), await server.alerts()

        name = inject.__name__
        assert status == lasting[0] == "critical", (name, message)
        assert words in message, (name, message)
        assert f"health:{check}" in alerts, name
        assert told == sum(each == check for each, *_ in FAULTS[: FAULTS_BY_NAME.index(name) + 1]), name
        assert after[0] == "ok", (name, after)
        assert left == [], name


async def fill(server: Server) -> None:
    (server.disk / "large").write_bytes(bytes(4 * MIB - MIB // 16))


async def free(server: Server) -> None:
    (server.disk / "large").unlink()


async def litter(server: Server) -> None:
    for number in range(97):
        (server.disk / f"{number}.empty").touch()


async def tidy(server: Server) -> None:
    for file in server.disk.glob("*.empty"):
        file.unlink()


async def kill_nginx(server: Server) -> None:
    """It does not start again, with a configuration that somebody has broken by hand."""
    configuration = server.sites.folders.nginx / "current" / "nginx.conf"
    configuration.with_name("whole").write_bytes(configuration.read_bytes())
    configuration.write_text("this is no configuration;")
    process = server.sites.launcher.processes[NGINX]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    await server.sites.launcher.ensure(server.sites.launcher.services[NGINX])
    server.sites.launcher.processes[NGINX].wait(timeout=60)


async def mend_nginx(server: Server) -> None:
    configuration = server.sites.folders.nginx / "current" / "nginx.conf"
    configuration.write_bytes(configuration.with_name("whole").read_bytes())
    await server.sites.launcher.ensure(server.sites.launcher.services[NGINX])


async def hang_mariadb(server: Server) -> None:
    """As on a disk that answers no more: its process is there, and takes connections."""
    await _signal(server, EngineKind.MARIADB, signal.SIGSTOP)


async def go_on_mariadb(server: Server) -> None:
    await _signal(server, EngineKind.MARIADB, signal.SIGCONT)


async def hang_postgresql(server: Server) -> None:
    await _signal(server, EngineKind.POSTGRESQL, signal.SIGSTOP)


async def go_on_postgresql(server: Server) -> None:
    await _signal(server, EngineKind.POSTGRESQL, signal.SIGCONT)


async def _signal(server: Server, kind: EngineKind, number: signal.Signals) -> None:
    pid = await server.engines.pid(kind)
    assert pid is not None
    os.kill(pid, number)


async def kill_knot(server: Server) -> None:
    await server.knot.kill()


async def start_knot(server: Server) -> None:
    await server.knot.start()


Act = Callable[[Server], Awaitable[None]]
FAULTS: tuple[tuple[CheckName, str, Act, Act], ...] = (
    (CheckName.DISK, "full", fill, free),
    (CheckName.INODES, "inodes", litter, tidy),
    (CheckName.SERVICES, "do not run: nginx.", kill_nginx, mend_nginx),
    (CheckName.SERVICES, "do not answer: mariadb.", hang_mariadb, go_on_mariadb),
    (CheckName.SERVICES, "do not answer: postgresql.", hang_postgresql, go_on_postgresql),
    (CheckName.DNS, "does not answer", kill_knot, start_knot),
)
FAULTS_BY_NAME = [inject.__name__ for _, _, inject, _ in FAULTS]


async def test_a_database_whose_answers_are_lost_is_critical_and_well_once_they_come(
    panel_database: Database, panel_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_to(panel_database_url) as proxy, Database.open(proxy.url) as behind:
        busiest = TopConsumers(behind, SystemVitals(), {}, {}, ())
        checks = Checks(behind, None, None, SystemVitals(), {}, Path("/"), busiest, relay=True)  # type: ignore[arg-type]
        watch = HealthWatch(panel_database, {CheckName.DATABASE: checks.answering})
        proxy.answering = False
        for _ in range(WORSE_LOOKS):
            await watch.round()
        lost = await panel_database.fetchone("SELECT status, message FROM health_checks")
        proxy.answering = True
        for _ in range(BETTER_LOOKS):
            await watch.round()
        found = await panel_database.fetchone("SELECT status FROM health_checks")
        told = await panel_database.fetchval("SELECT count(*) FROM webhook_events WHERE event = 'health.critical'")

    assert (lost["status"], lost["message"]) == ("critical", "The panel's database does not answer.")
    assert (found["status"], told) == ("ok", 1)
