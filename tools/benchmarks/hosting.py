"""What sites of a panel cost each other and the people who wait for them: `tools/bench hosting [PART ...]`.

- neighbours: the 99th percentile of a PHP page's answers while another site, which has limits, runs busy loops, takes
  all the memory that it gets, and forks without end; against the same page while that site is quiet, interleaved;
- an application's deployment, from the call to the end of its job, and its rollback, from the call to its answer;
- a diagnosis of a site;
- an archive of 1 GB, read as an import reads it, against `tar -t` of the same, interleaved, and the memory it takes;
- one round of the health checks with 1,000 sites, against one with ten.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

import trio

from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.checks import Checks
from svc_actors.panel.health.watch import HealthWatch
from svc_actors.store import PANEL_SCHEMA, Database, embedded, known_migrations, migrate
from svc_webhost.accounts import FIRST_UID
from svc_webhost.launcher import Service, ServiceName
from tests.support.dns import RecordedNameServer
from tests.support.panel import RecordedLauncher, RecordedVitals, open_panel, recorded_host
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.panel_sites import site_row
from tests.support.surveys import read_archive
from tools.benchmarks.figures import MESSAGES, Figure, show

PARTS: Final = ("archive", "health", "deployments", "neighbours")
TURNS: Final = 3
TURN_SECONDS: Final = 8.0
EVERY: Final = 0.05
"""Seconds between two requests."""
LIMITS: Final = {"cpu_percent": 50, "memory_mib": 160, "processes": 12}
"""The limits of the site that takes all that it gets."""
AT_ONCE: Final = 4
"""Visitors of that site, each of which sends its next request as soon as it is answered."""
GREEDY: Final = {
    "busy loops": "<?php while (true);",
    "a memory hog": "<?php ini_set('memory_limit', '-1'); $kept = []; while (true) $kept[] = random_bytes(1 << 20);",
    "a fork bomb": "<?php while (true) @exec('(sleep 1 & sleep 1 & sleep 1 &) > /dev/null 2>&1');",
}
WORKING: Final = "<?php $sum = 0; for ($i = 0; $i < 20000; $i++) $sum += $i; echo $sum;"
APPLICATION: Final = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"{version}"
"""
DEPLOYMENTS: Final = 5
ARCHIVE_MIB: Final = 1024
ARCHIVED_FILES: Final = 8400
MANY: Final = 1000
FEW: Final = 10
ROUNDS: Final = 5


@dataclass(frozen=True)
class Visited:
    """A site that is visited over connections of its own, and the time of each answer in milliseconds."""

    panel: PanelPrograms
    domain: str

    async def get(self, path: str) -> bytes:
        stream = await trio.open_tcp_stream("127.0.0.1", self.panel.http_port)
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: {self.domain}\r\nConnection: close\r\n\r\n".encode())
            received = bytearray()
            async for chunk in stream:
                received += chunk
        return bytes(received)

    async def times(self, seconds: float) -> list[float]:
        taken: list[float] = []

        async def visit() -> None:
            began = monotonic()
            answer = await self.get("/index.php")
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
            taken.append(1000 * (monotonic() - began))

        async with trio.open_nursery() as visitors:
            until = trio.current_time() + seconds
            while trio.current_time() < until:
                visitors.start_soon(visit)
                await trio.sleep(EVERY)
        return taken


@asynccontextmanager
async def _greedy(site: Visited) -> AsyncIterator[None]:
    async def ask() -> None:
        while True:
            try:
                await site.get("/greedy.php")
            except (OSError, trio.BrokenResourceError):
                await trio.sleep(EVERY)

    async with trio.open_nursery() as visitors:
        for _ in range(AT_ONCE):
            visitors.start_soon(ask)
        await trio.sleep(1)
        yield
        visitors.cancel_scope.cancel()


def _put(panel: PanelPrograms, site: dict[str, Any], name: str, content: bytes) -> None:
    path = panel.data / "sites" / site["account"] / name
    path.write_bytes(content)
    os.chown(path, FIRST_UID + site["number"], FIRST_UID + site["number"])


async def neighbours(panel: PanelPrograms) -> list[Figure]:
    quiet, greedy = [await panel.site(f"{name}.example.com", type="php") for name in ("quiet", "greedy")]
    async with panel.client() as root:
        limited = await root.patch(f"/sites/{greedy['id']}", json=LIMITS)
        assert limited.status_code == 200, limited.text
    _put(panel, quiet, "public/index.php", WORKING.encode())
    visited, other = Visited(panel, quiet["domain"]), Visited(panel, greedy["domain"])
    await visited.times(2)
    figures = []
    for name, code in GREEDY.items():
        _put(panel, greedy, "public/greedy.php", code.encode())
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(TURNS):
            alone += await visited.times(TURN_SECONDS)
            async with _greedy(other):
                beside += await visited.times(TURN_SECONDS)
        peer, ours = (quantiles(times, n=100)[98] for times in (alone, beside))
        words = f"a neighbour's p99 beside {name} ({ours:.0f} ms) : alone ({peer:.0f} ms)"
        figures.append(Figure(words, ours / peer, "times", 2))
        async with panel.client() as root:
            # The programs it has started end with it.
            for suspended in (True, False):
                body = {"suspended": suspended, "reason": "measured"} if suspended else {"suspended": False}
                await root.post(f"/sites/{greedy['id']}/suspend", json=body)
    return figures


async def deployments(panel: PanelPrograms) -> list[Figure]:
    site = await panel.site("app.example.com", type="app", runtime="python", entry="app:application")
    deployed, rolled_back = [], []
    async with panel.client() as root:
        for turn in range(DEPLOYMENTS + 1):
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w:gz") as tar:
                code = APPLICATION.format(version=turn).encode()
                member = tarfile.TarInfo("app.py")
                member.size = len(code)
                tar.addfile(member, io.BytesIO(code))
            _put(panel, site, "code.tar.gz", archive.getvalue())
            began = monotonic()
            answer = await root.post(f"/sites/{site['id']}/deploy", json={"archive": "code.tar.gz"})
            assert answer.status_code == 200, answer.text
            job = answer.json()
            while job["ended_at"] is None:
                await trio.sleep(0.05)
                job = (await root.get(f"/jobs/{job['id']}")).json()
            assert job["status"] == "succeeded", job
            deployed.append(monotonic() - began)
        for turn in range(DEPLOYMENTS):
            # Alternates between the last two deployments.
            chosen = {"deployment": DEPLOYMENTS + turn % 2}
            began = monotonic()
            answer = await root.post(f"/sites/{site['id']}/rollback", json=chosen)
            assert answer.status_code == 200, answer.text
            rolled_back.append(monotonic() - began)
        diagnosed = []
        for _ in range(DEPLOYMENTS):
            began = monotonic()
            answer = await root.get(f"/sites/{site['id']}/diagnose")
            assert answer.status_code == 200, answer.text
            diagnosed.append(monotonic() - began)
    return [
        Figure("a deployment of an application, to the end of its job", median(deployed[1:]), "s"),
        Figure("its rollback", median(rolled_back), "s", 2),
        Figure("a diagnosis", median(diagnosed), "s", 2),
    ]


def _write_archive(path: Path) -> None:
    """Of files that compress about as those of sites do: to half."""
    size, chance = (ARCHIVE_MIB << 20) // ARCHIVED_FILES, random.Random(1)
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for number in range(ARCHIVED_FILES):
            member = tarfile.TarInfo(f"site/wp-content/uploads/{number % 97}/file-{number}.jpg")
            member.size = size
            tar.addfile(member, io.BytesIO(chance.randbytes(size // 2) + bytes(size - size // 2)))


def _largest_child() -> int:
    """The highest memory use of any child of this process so far, in KiB; 0 if there is none."""
    largest = 0
    for child in Path("/proc/self/task").glob("*/children"):
        for pid in child.read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                largest = max(largest, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    return largest


def _read(archive: Path, done: Event) -> None:
    read_archive(archive)
    done.set()


def _memory_of_reader(archive: Path) -> float:
    """In MiB. A child that has not started its program yet is a copy of this process for a moment, so its first tenth
    is left out."""
    done = Event()
    reader = Thread(target=_read, args=(archive, done))
    reader.start()
    done.wait(0.1)
    largest = 0
    while not done.wait(0.01):
        largest = max(largest, _largest_child())
    reader.join()
    return largest / 1024


def archive_read(folder: Path) -> list[Figure]:
    archive = folder / "backup.tar.gz"
    _write_archive(archive)
    ours, peer = [], []
    for _ in range(TURNS):
        began = monotonic()
        status, said, found = read_archive(archive)
        assert (status, found is not None) == (0, True), said
        ours.append(monotonic() - began)
        began = monotonic()
        subprocess.run(["tar", "-tzf", archive], stdout=subprocess.DEVNULL, check=True)
        peer.append(monotonic() - began)
    words = f"an archive of 1 GB, read ({median(ours):.1f} s) : tar -t ({median(peer):.1f} s)"
    return [
        Figure(words, median(ours) / median(peer), "times", 1.2),
        Figure("the memory of what reads it, at most", _memory_of_reader(archive), "MiB", 64),
    ]


async def health_round(folder: Path) -> Figure:
    folder.mkdir(mode=0o711)
    async with embedded(folder / "postgresql") as url, Database.open(url) as database:
        await migrate(database, known_migrations(PANEL_SCHEMA))
        launcher, names, vitals = RecordedLauncher(), RecordedNameServer(), RecordedVitals()
        host = replace(recorded_host(names), launcher=launcher, vitals=vitals)
        async with open_panel(database, folder, host, loops=None) as panel:
            owner = await panel.person("ada@example.com")
            busiest = TopConsumers(database, vitals, host.databases, {}, ())
            checks = Checks(database, launcher, names, vitals, host.databases, folder, busiest, relay=True)
            watch = HealthWatch(database, checks.all())

            async def grown(begin: int, end: int) -> float:
                for number in range(begin, end):
                    await site_row(database, owner, f"site{number}.example.com")
                    await launcher.ensure(Service(ServiceName(f"site-{1001 + number}-php-8.2"), ("/bin/true",)))
                taken = []
                for _ in range(ROUNDS):
                    began = monotonic()
                    await watch.round()
                    taken.append(1000 * (monotonic() - began))
                return median(taken)

            few, many = await grown(0, FEW), await grown(FEW, MANY)
    return Figure(f"a round of health with 1,000 sites ({few:.0f} ms with ten)", many, "ms", 1000)


async def measure(wanted: Collection[str]) -> Sequence[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        if "archive" in wanted:
            _tell("an archive")
            figures += await trio.to_thread.run_sync(archive_read, folder)
        if "health" in wanted:
            _tell("a round of health")
            figures.append(await health_round(folder / "health"))
        async with open_panel_programs() as panel:
            await panel.start()
            await panel.customer()
            if "deployments" in wanted:
                _tell("deployments")
                figures += await deployments(panel)
            if "neighbours" in wanted:
                _tell("neighbours")
                figures += await neighbours(panel)
    return figures


def _tell(what: str) -> None:
    MESSAGES.print(f"measuring {what} ...", style="dim")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench hosting", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when left out")
    chosen = parser.parse_args(arguments).parts or PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    before = os.getloadavg()[0]
    show(trio.run(measure, chosen), before)
