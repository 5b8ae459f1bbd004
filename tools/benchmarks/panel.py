"""What a hosting panel takes at rest, and how long its users wait: `tools/bench panel [--rest 60] [--skip-jobs]`.

Core, web and keeper are started as on a server, with accounts, folders and ports of their own, and are asked over their
sockets; the certificates are of a local authority (Pebble). First they are left alone, with one static site: resident
memory (RSS), the share of it that is theirs (PSS), and processor time. Then, a median of five where it is quick:

- a static site, from the call that orders it to its first page; WordPress, to its first page over HTTPS, MariaDB being
  set up for the first of them;
- a folder of 1,000 files, listed over the core's socket;
- a backup of 512 MiB that all are new, by the times of its job, against a bare `restic backup` of the same files;
- a change among 1,000 sites with certificates, and of 100 of them that are changed at once: nginx, its configuration
  and the loop that changes it, without the records;
- jobs and webhooks, as `tools/bench B8 B9`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

import httpx
import trio

from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher_keeper import KeeperLauncher
from svc_actors.host.nginx import SiteServer
from svc_actors.panel.web_server import WebServer
from svc_actors.store import PANEL_SCHEMA, Database, embedded, known_migrations, migrate
from tests.support.nginx import FIRST, nginx_sites
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.pebble import Pebble, open_pebble
from tools.benchmarks import Ratio, jobs, webhooks
from tools.benchmarks.figures import MESSAGES, Figure, show

TURNS: Final = 5
WORDPRESSES: Final = 2
FILES: Final = 1000
LISTINGS: Final = 30
BACKUPS: Final = 3
BACKUP_FILES: Final = 2048
BACKUP_FILE_BYTES: Final = 256 << 10
SITES: Final = 1000
TOGETHER: Final = 100
SETTLE_SECONDS: Final = 10.0


async def _programs(panel: PanelPrograms) -> dict[str, int]:
    """Process ids."""
    assert panel.core.process is not None
    assert panel.web.process is not None
    keeper = await KeeperLauncher(HostFolders(panel.data)).keeper_pid()
    return {"core": panel.core.process.pid, "web": panel.web.process.pid, "keeper": keeper}


def _memory(pid: int, field: str) -> float:
    """Of a process, in MB as its users count them (2^20 bytes)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:"))) / 1024


def _used_seconds(pid: int) -> float:
    """Processor time of a process itself, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _database_memory(panel: PanelPrograms) -> float:
    """Of the core's PostgreSQL, all its processes: what they share is counted once."""
    server = int((panel.data / "postgresql" / "cluster" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return sum(_memory(pid, "Pss") for pid in (server, *map(int, children)))


async def at_rest(panel: PanelPrograms, seconds: float) -> list[Figure]:
    await trio.sleep(SETTLE_SECONDS)
    programs = await _programs(panel)
    used, began = {name: _used_seconds(pid) for name, pid in programs.items()}, monotonic()
    await trio.sleep(seconds)
    passed = monotonic() - began
    share = {name: 100 * (_used_seconds(pid) - used[name]) / passed for name, pid in programs.items()}
    figures = []
    for name, goal in (("core", 160.0), ("web", 70.0), ("keeper", 15.0)):
        pid = programs[name]
        figures.append(Figure(f"{name} at rest, RSS", _memory(pid, "Rss"), "MB", goal))
        figures.append(Figure(f"{name} at rest, PSS", _memory(pid, "Pss"), "MB"))
    figures.append(Figure("the core's PostgreSQL at rest, PSS", _database_memory(panel), "MB"))
    figures.append(Figure("core, web and keeper at rest", sum(share.values()), "% of a core", 0.5))
    return figures


async def _until(holds: Callable[[], Any], pause: float = 0.02) -> None:
    with trio.fail_after(240):
        while not await holds():
            await trio.sleep(pause)


async def static_sites(panel: PanelPrograms) -> Figure:
    """From the call to a page that a visitor is shown."""
    taken = []
    for turn in range(TURNS):
        domain, began = f"static{turn}.example.com", monotonic()

        async def answers(domain: str = domain) -> bool:
            try:
                return (await panel.visit(domain)).status_code == 200
            except httpx.TransportError:
                return False  # Nobody answers for that name yet.

        await panel.site(domain)
        await _until(answers)
        taken.append(monotonic() - began)
    return Figure("a static site, to its first answer", median(taken), "s", 2)


async def wordpress_sites(panel: PanelPrograms, authority: Pebble) -> list[Figure]:
    trusted = await authority.root()
    figures = []
    for turn in range(WORDPRESSES):
        domain, began = f"blog{turn}.example.com", monotonic()

        async def answers(domain: str = domain) -> bool:
            try:
                return (await panel.visit(domain, trusted=trusted)).status_code == 200
            except httpx.TransportError:
                return False

        await panel.site(domain, type="wordpress", title="A blog")
        await _until(answers, 0.1)
        what = "the first WordPress of a server" if turn == 0 else "a further WordPress"
        figures.append(Figure(f"{what}, to its first answer over HTTPS", monotonic() - began, "s", 20))
    return figures


def _write_files(folder: Path, count: int, size: int, *, owner: int) -> None:
    folder.mkdir(exist_ok=True)
    os.chown(folder, owner, owner)
    for number in range(count):
        file = folder / f"file-{number:05}"
        file.write_bytes(os.urandom(size))
        os.chown(file, owner, owner)


async def listed_files(panel: PanelPrograms, site: dict[str, Any]) -> Figure:
    public = panel.data / "sites" / site["account"] / "public"
    await trio.to_thread.run_sync(lambda: _write_files(public / "many", FILES, 10, owner=public.stat().st_uid))
    taken = []
    async with panel.client() as root:
        for _ in range(LISTINGS):
            began = monotonic()
            answer = await root.get(f"/sites/{site['id']}/files?path=public/many&limit={FILES}")
            taken.append(1000 * (monotonic() - began))
            assert len(answer.json()["entries"]) == FILES, answer.text
    return Figure("1,000 files of a site, listed", median(taken), "ms", 15)


async def backups(panel: PanelPrograms, site: dict[str, Any], folder: Path) -> Figure:
    home = panel.data / "sites" / site["account"]
    public = home / "public"
    folder.mkdir()
    (folder / "password").write_text("bare")
    environment = {**os.environ, "RESTIC_REPOSITORY": str(folder / "bare"), "GOMAXPROCS": "1"}
    environment["RESTIC_PASSWORD_FILE"] = str(folder / "password")
    restic = ["nice", "-n", "10", "restic", "--quiet", "--no-cache"]
    await trio.run_process([*restic, "init"], env=environment)
    ours, bare = [], []
    for _ in range(BACKUPS):
        owner = public.stat().st_uid
        write = partial(_write_files, public / "large", BACKUP_FILES, BACKUP_FILE_BYTES, owner=owner)
        await trio.to_thread.run_sync(write)
        await trio.to_thread.run_sync(os.sync)
        ours.append(await _backup(panel, site))
        began = monotonic()
        await trio.run_process([*restic, "backup", str(home)], env=environment)
        bare.append(monotonic() - began)
    words = f"a backup of 512 MiB ({median(ours):.1f} s) : bare restic ({median(bare):.1f} s)"
    return Figure(words, median(ours) / median(bare), "times", 1.15)


async def _backup(panel: PanelPrograms, site: dict[str, Any]) -> float:
    """By the times of its job, in seconds."""
    async with panel.client() as root:
        answer = await root.post(f"/sites/{site['id']}/backups", json={})
        assert answer.status_code < 300, answer.text
        job = answer.json()

        async def ended() -> bool:
            job.update((await root.get(f"/jobs/{job['id']}")).json())
            return job["ended_at"] is not None

        await _until(ended, 0.1)
    assert job["status"] == "succeeded", job
    began, ended_at = (datetime.fromisoformat(job[name]) for name in ("started_at", "ended_at"))
    return (ended_at - began).total_seconds()


async def many_sites(folder: Path) -> list[Figure]:
    """Changes of nginx's configuration, as the actors of sites ask for them."""
    folder.mkdir(mode=0o711)
    with nginx_sites() as nginx:
        async with embedded(folder / "postgresql") as url, Database.open(url) as database:
            await migrate(database, known_migrations(PANEL_SCHEMA))
            certificate = nginx.certificate("shared")
            sites = [nginx.site(number, certificate=certificate) for number in range(FIRST, FIRST + SITES)]

            async def all_sites() -> tuple[Sequence[SiteServer], dict[int, str]]:
                return sites, {}

            server = WebServer(database, nginx.generations, all_sites)

            async def change(turn: int, numbers: Sequence[int]) -> float:
                began = monotonic()
                async with trio.open_nursery() as changes:
                    for number in numbers:
                        site = nginx.site(number, certificate=certificate, aliases=(f"a{turn}-{number}.example",))
                        changes.start_soon(server.change, {number: site})
                return monotonic() - began

            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.run)
                await server.change({})
                one = [await change(turn, [FIRST + turn]) for turn in range(TURNS)]
                reloads = nginx.launcher.reloads
                many = await change(TURNS, range(FIRST + TOGETHER, FIRST + 2 * TOGETHER))
                reloads = nginx.launcher.reloads - reloads
                nursery.cancel_scope.cancel()
    return [
        Figure("one change among 1,000 sites", median(one), "s", 3),
        Figure(f"100 changes at once among 1,000 sites, {reloads} reload(s)", many, "s", 10),
    ]


def _as_figure(row: Ratio) -> Figure:
    name = f"{row.name} ({row.ours:,.0f} : {row.peer:,.0f} {row.unit})"
    return Figure(name, row.ratio, "times", row.goal, row.higher_is_better)


async def measure(rest_seconds: float) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        async with open_pebble(folder / "pebble") as authority, open_panel_programs(authority) as panel:
            await panel.start()
            await panel.customer()
            site = await panel.site("shop.example.com")
            await panel.start_web()
            _tell("the programs at rest")
            figures += await at_rest(panel, rest_seconds)
            _tell("sites")
            figures.append(await static_sites(panel))
            figures += await wordpress_sites(panel, authority)
            _tell("files and backups")
            figures.append(await listed_files(panel, site))
            figures.append(await backups(panel, site, folder / "bare"))
        _tell("a thousand sites")
        figures += await many_sites(folder / "many")
    return figures


def _tell(what: str) -> None:
    MESSAGES.print(f"measuring {what} ...", style="dim")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench panel", description=__doc__)
    parser.add_argument("--rest", type=float, default=60, help="seconds for which the programs are left alone (60)")
    parser.add_argument("--skip-jobs", action="store_true", help="without B8 and B9")
    chosen = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    figures = trio.run(measure, chosen.rest)
    if not chosen.skip_jobs:
        _tell("jobs and webhooks")
        figures += [_as_figure(row) for row in (*jobs.measure(), *webhooks.measure())]
    show(figures, before)
