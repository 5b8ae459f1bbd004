"""What a noisy site does to its neighbour, kind by kind: `tools/bench noise [KIND ...] [--rounds 3]`.

A real panel (nginx, PHP, MariaDB) has two sites of two customers, each with 128 MiB, 20 processes and half a core. One
is visited: a PHP page that asks MariaDB; and its owner asks the panel `GET /me`, one request after the other. The other
site makes one kind of noise after the other. Each round measures page and panel while the other site is quiet and then
beside the noise; the ratio is the median of the rounds. Printed beside it: what the panel tells its administrator about
the cause, which is each kind of log line of the core, and each check of health, that names the noisy site or the
address of its visitor. Health looks once a minute: with --named each kind goes on after its rounds until it has looked
twice.

Each half of a round is a second, so that all kinds take less than two minutes. The p99 of so few answers is about the
slowest of them: a figure for comparison, not for a test.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import monotonic
from typing import Any, Final

import trio
from rich.console import Console
from rich.table import Table

from svc_webhost.accounts import FIRST_UID
from tests.support.panel_programs import PanelPrograms, open_panel_programs
from tests.support.worst_texts import HTACCESS
from tools.benchmarks.figures import MESSAGES

GOAL: Final = 2.0
ROUNDS: Final = 3
ROUND_SECONDS: Final = 1.0
EVERY: Final = 0.0125
"""Seconds between two visits."""
RISE_SECONDS: Final = 0.3
"""From the start of the noise to the first visit during it."""
NOISE_SECONDS: Final = ROUND_SECONDS + RISE_SECONDS + 0.1
NAMED_SECONDS: Final = 125.0
"""Two rounds of health checks, and some more."""
LIMITS: Final = {"memory_mib": 128, "processes": 20, "cpu_percent": 50}
JOB_BYTES: Final = 64 << 20

PAGE: Final = """<?php
$db = new mysqli(null, '{user}', '{password}', '{name}', 0, '{socket}');
echo $db->query('SELECT SUM(n) FROM numbers')->fetch_row()[0];
"""
FILLED: Final = """<?php
$db = new mysqli(null, '{user}', '{password}', '{name}', 0, '{socket}');
$db->query('CREATE TABLE IF NOT EXISTS numbers AS SELECT seq AS n FROM seq_1_to_1000');
echo 'filled';
"""
_PYTHON: Final = """import os, sys, time
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
"""
_PHP: Final = """<?php // A second longer: the panel looks at sessions once a second.
mysqli_report(MYSQLI_REPORT_OFF);
$until = microtime(true) + 1 + (float) $argv[1];
while (microtime(true) < $until) {{
    $held = [];
    for ($i = 0; $i < 25 && microtime(true) < $until; $i++) {{
        $db = @mysqli_connect(null, '{user}', '{password}', '{name}', 0, '{socket}');
        if (!$db) break;
        BODY
        $held[] = $db;
    }}
}}
"""
TASKS: Final = {
    "memory": """
    if os.fork() == 0:
        largest = bytearray(os.urandom(32 << 20))  # So it is killed and not its parent, which makes the next.
        fd = os.memfd_create("noise")
        while True:
            os.write(fd, bytes(1 << 20))
    os.wait()
""",
    "database memory": _PHP.replace(
        "BODY", "for ($v = 0; $v < 8; $v++) $db->query(\"SET @v$v = REPEAT('x', 15 << 20)\");"
    ),
    "processor": """
    for _ in range(8):
        if os.fork() == 0:
            while time.monotonic() < until: pass
            os._exit(0)
    for _ in range(8): os.wait()
""",
    "processes": """
    try:
        os.fork()
    except OSError:
        pass
""",
    "disk": """
    with open("private/noise", "wb") as file:
        for _ in range(16):
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
""",
    "database connections": _PHP.replace("BODY", "$db->query('SELECT COUNT(*) FROM seq_1_to_1000');"),
}
"""By the kind of noise: what a scheduled task of the site does until its time is over."""
VISITOR_ADDRESS: Final = "127.0.0.9"
VISITOR: Final = """import socket, sys, time
end = chr(13) + chr(10)
port, domain, address, seconds = sys.argv[1:]
until, held = time.monotonic() + float(seconds), []
while time.monotonic() < until:
    try:
        held.append(socket.create_connection(("127.0.0.1", int(port)), 1, (address, 0)))
        held[-1].sendall(f"GET / HTTP/1.1{end}Host: {domain}{end}{len(held) % 2 * end}".encode())
    except OSError:
        pass
    if len(held) >= 1000:
        held.pop(0).close()
        time.sleep(0.01)
"""
"""One address opens all the connections that it can, and half of them never complete their request. The firewall lets
loopback connections pass, so its limits are applied here: 1,000 at once, then 100 new ones a second."""
CALLERS: Final = """import os, socket, sys, threading, time
path, asked, token, until = sys.argv[1], sys.argv[2], sys.argv[3], time.monotonic() + float(sys.argv[4])
end = chr(13) + chr(10)
words = [f"GET /api/v1{asked} HTTP/1.1", "Host: core", "Connection: close"]
words.append(f"Authorization: Bearer {token}")
def ask():
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)
            caller.sendall((end.join(words) + 2 * end).encode())
            if caller.recv(65536)[9:12] in (b"401", b"403", b"404"): os._exit(1)
            while caller.recv(65536): pass
for _ in range(8): threading.Thread(target=ask).start()
"""
"""Eight callers with a token of the site's owner, each of which sends its next request after each answer."""


@dataclass(frozen=True)
class Site:
    panel: PanelPrograms
    facts: dict[str, Any]
    login: dict[str, str]
    """Of its database, for the texts above."""
    database: str
    token: str
    """Of its owner."""

    async def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        async with self.panel.client() as root:
            answer = await root.request(method, path, json=body)
            assert answer.is_success, answer.text
            return answer.json() if answer.content else None

    def write(self, name: str, content: str) -> None:
        path, uid = self.panel.data / "sites" / self.facts["account"] / name, FIRST_UID + self.facts["number"]
        path.write_text(content)
        os.chown(path, uid, uid)

    def write_worst(self) -> None:
        public, uid = self.panel.data / "sites" / self.facts["account"] / "public", FIRST_UID + self.facts["number"]
        for number, text in enumerate(HTACCESS.values()):
            folder = public / f"worst{number}"
            folder.mkdir(exist_ok=True)
            (folder / ".htaccess").write_text(text)
            for path in (folder, folder / ".htaccess"):
                os.chown(path, uid, uid)

    async def page(self, path: str = "/index.php") -> float:
        """Milliseconds that a visitor waits, over a connection of its own."""
        began, received = monotonic(), bytearray()
        async with await trio.open_tcp_stream("127.0.0.1", self.panel.http_port) as stream:
            head = f"GET {path} HTTP/1.1\r\nHost: {self.facts['domain']}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode())
            async for chunk in stream:
                received += chunk
        assert received.startswith(b"HTTP/1.1 200 "), received[:300]
        return 1000 * (monotonic() - began)

    async def visited(self, seconds: float) -> list[float]:
        taken: list[float] = []

        async def visit() -> None:
            taken.append(await self.page())

        async with trio.open_nursery() as visitors:
            until = trio.current_time() + seconds
            while trio.current_time() < until:
                visitors.start_soon(visit)
                await trio.sleep(EVERY)
        return taken

    async def asked(self, taken: list[float]) -> None:
        """Milliseconds of each answer of the panel to the site's owner, until cancelled."""
        async with self.panel.client(self.token) as owner:
            while True:
                began = monotonic()
                assert (await owner.get("/me")).is_success
                taken.append(1000 * (monotonic() - began))
                await trio.sleep(EVERY)

    async def ended(self, job: str) -> None:
        with trio.fail_after(60):
            while (await self.request("GET", f"/jobs/{job}"))["ended_at"] is None:
                await trio.sleep(0.02)

    async def backed_up(self, seconds: float) -> list[float]:
        """The time of one backup in milliseconds, whatever its length."""
        began = monotonic()
        await self.ended((await self.request("POST", f"/sites/{self.facts['id']}/backups", {}))["id"])
        return [1000 * (monotonic() - began)]


SLOTS: Final = "jobs, a backup"
"""The neighbour's backup waits, from its order to its end, instead of a visitor. One round, since it takes seconds."""
Noise = Callable[[Site, float], AbstractAsyncContextManager[None]]
"""So many seconds of noise, which start with the block."""


@asynccontextmanager
async def task(kind: str, site: Site, seconds: float) -> AsyncIterator[None]:
    """A scheduled task of the site, which runs at least as long as the block, and is over after it."""
    php = TASKS[kind].startswith("<?php")
    site.write("private/noise.task", TASKS[kind].format(**site.login) if php else _PYTHON + TASKS[kind])
    wanted: dict[str, Any] = {
        "name": kind,
        "kind": "php" if php else "python",
        "path": "private/noise.task",
        "cron": "0 0 1 1 *",
    }
    wanted |= {"args": [str(seconds)], "time_limit_seconds": round(seconds) + 10}
    schedule = await site.request("POST", f"/sites/{site.facts['id']}/schedules", wanted)
    run = await site.request("POST", f"/schedules/{schedule['id']}/run")

    async def after(*statuses: str) -> str:
        with trio.fail_after(seconds + 60):
            while True:
                runs = await site.request("GET", f"/schedules/{schedule['id']}/runs")
                status: str = next(each["status"] for each in runs if each["id"] == run["id"])
                if status not in statuses:
                    return status
                await trio.sleep(0.05)

    await after("queued")
    yield
    ended = await after("queued", "running")
    assert ended == "succeeded", f"{kind} was no noise to its end: {ended}"
    await site.request("DELETE", f"/schedules/{schedule['id']}")


@asynccontextmanager
async def program(text: str, *words: str, seconds: float) -> AsyncIterator[None]:
    """Another process, so that it does not delay the visitors of this one. It only gets processor time that nobody else
    wants, as a client elsewhere would take none: a session of its own, since the kernel's scheduler goes by that
    first."""
    polite = ["setsid", "--wait", "sh", "-c", 'echo 19 >/proc/self/autogroup; exec "$@"', "sh"]
    command = [*polite, "nice", "-n", "19", sys.executable, "-c", text, *words, str(seconds)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL)
    yield
    assert await process.wait() == 0


def connections(site: Site, seconds: float) -> AbstractAsyncContextManager[None]:
    return program(VISITOR, str(site.panel.http_port), site.facts["domain"], VISITOR_ADDRESS, seconds=seconds)


def diagnoses(site: Site, seconds: float) -> AbstractAsyncContextManager[None]:
    return callers(site, "diagnose", seconds)


@asynccontextmanager
async def worst_files(site: Site, seconds: float) -> AsyncIterator[None]:
    """The meaning of the site's `.htaccess` files is requested repeatedly; each has 256 KiB of the worst known
    content."""
    await trio.to_thread.run_sync(site.write_worst)
    async with callers(site, "htaccess", seconds):
        yield


def callers(site: Site, what: str, seconds: float) -> AbstractAsyncContextManager[None]:
    path = f"/sites/{site.facts['id']}/{what}"
    return program(CALLERS, str(site.panel.socket), path, site.token, seconds=seconds)


@asynccontextmanager
async def jobs(site: Site, seconds: float) -> AsyncIterator[None]:
    """Backups, of files that are new, and exports of the database. Refused ones are not waited for."""
    orders = [f"/sites/{site.facts['id']}/backups"] + 4 * [f"/databases/{site.database}/export"]
    started: set[str] = set()

    async def order() -> None:
        await trio.to_thread.run_sync(site.write, "private/new", os.urandom(JOB_BYTES // 2).hex())
        async with site.panel.client() as root:
            answers = [await root.post(order, json={}) for order in orders]
        started.update(answer.json()["id"] for answer in answers if answer.is_success)
        assert started, answers[0].text

    async def go_on() -> None:
        with trio.move_on_after(seconds):
            while True:
                await trio.sleep(1)
                await order()

    await order()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(go_on)
        yield
        nursery.cancel_scope.cancel()
    async with site.panel.client() as root:
        for job in started:
            await root.post(f"/jobs/{job}/cancel")  # refused for a job that has ended
    for job in started:
        await site.ended(job)


NOISES: Final[dict[str, Noise]] = {
    **{kind: partial(task, kind) for kind in TASKS},
    "connections": connections,
    "diagnoses": diagnoses,
    "worst files": worst_files,
    "jobs": jobs,
    SLOTS: jobs,
}


async def site_with_database(panel: PanelPrograms, label: str) -> Site:
    email = f"{label}@example.com"
    await panel.customer(email)
    facts = await panel.site(f"{label}.example", email, type="php")
    async with panel.client() as root:
        limited = await root.patch(f"/sites/{facts['id']}", json=LIMITS)
        assert limited.is_success, limited.text
        wanted = {"site_id": facts["id"], "name": "shop", "engine": "mariadb", "user": "shop"}
        answer = await root.post("/databases", json=wanted)
        assert answer.is_success, answer.text
        wanted = {"name": "bench", "scopes": ["admin"]}
        token = await root.post(f"/users/{facts['owner_id']}/tokens", json=wanted)
        assert token.is_success, token.text
    made = answer.json()
    login = {"user": made["login"]["user"]["name"], "password": made["login"]["password"]}
    login |= {"name": made["database"]["name"], "socket": made["database"]["socket"]}
    site = Site(panel, facts, login, made["database"]["id"], token.json()["token"])
    for name, text in (("index", PAGE), ("fill", FILLED)):
        site.write(f"public/{name}.php", text.format(**login))
    await site.page("/fill.php")
    return site


async def named(panel: PanelPrograms, noisy: Site, since: int) -> str:
    """Where an administrator can see that this site was the cause: events of the core's log, and health checks."""
    facts = noisy.facts
    address = re.escape(VISITOR_ADDRESS)
    names = re.compile(rf"\b({facts['account']}(_\w+)?|{re.escape(facts['domain'])}|{facts['id']}|{address})\b")
    log = (panel.folder / "core.log").read_bytes()[since:].decode(errors="replace")
    found = {
        f"log {event.group()}"
        for line in log.splitlines()
        if names.search(line) and (event := re.search(r"\b[a-z_]+\.[a-z_]+\b(?![\w.@/])", line))
    }
    health = await noisy.request("GET", "/health")
    found |= {f"health {check['name']}" for check in health["checks"] if names.search(check["message"])}
    return ", ".join(sorted(found)) or "nobody"


async def measured(victim: Site, kind: str) -> tuple[list[float], list[float]]:
    """The neighbour's waits during this kind of noise, and the panel's answers meanwhile."""
    answers: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(victim.asked, answers)
        waited = await (victim.backed_up if kind == SLOTS else victim.visited)(ROUND_SECONDS)
        nursery.cancel_scope.cancel()
    return waited, answers


def p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]


def ratio(quiet: list[list[float]], loud: list[list[float]]) -> tuple[str, str]:
    """The ratio of the p99 values, and whether the goal is met."""
    found = median(p99(beside) / p99(alone) for alone, beside in zip(quiet, loud, strict=True))
    return f"{found:.2f}", "met" if found <= GOAL else "missed"


async def measure(kinds: Collection[str], rounds: int, until_named: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("noise", "quiet p50", "p99", "beside it p50", "p99 (ms)", "p99 ratio", ""):
        table.add_column(heading, justify="right" if "p" in heading else "left")
    for heading in ("panel p99", "beside it (ms)", "p99 ratio", "", "named by"):
        table.add_column(heading, justify="left" if heading in ("", "named by") else "right")
    async with open_panel_programs() as panel:
        await panel.start()
        victim, noisy = [await site_with_database(panel, label) for label in ("victim", "noisy")]
        await victim.visited(ROUND_SECONDS)
        for kind in kinds:
            MESSAGES.print(f"measuring {kind} ...", style="dim")
            since = (panel.folder / "core.log").stat().st_size
            quiet, loud = [], []
            for _ in range(1 if kind == SLOTS else rounds):
                quiet.append(await measured(victim, kind))
                async with NOISES[kind](noisy, NOISE_SECONDS):
                    await trio.sleep(RISE_SECONDS)
                    loud.append(await measured(victim, kind))
            if until_named:
                async with NOISES[kind](noisy, NAMED_SECONDS):
                    await trio.sleep(NAMED_SECONDS)
            pages, answers = [([turn[which] for turn in quiet], [turn[which] for turn in loud]) for which in (0, 1)]
            shown = [median(value(each) for each in turns) for turns in pages for value in (median, p99)]
            of_panel = [median(p99(each) for each in turns) for turns in answers]
            cells = [*(f"{value:.1f}" for value in shown), *ratio(*pages)]
            cells += [*(f"{value:.1f}" for value in of_panel), *ratio(*answers)]
            table.add_row(kind, *cells, await named(panel, noisy, since))
    return table


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench noise", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(NOISES)}; all when left out")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each kind ({ROUNDS})")
    parser.add_argument("--named", action="store_true", help="each kind lasts two minutes, until health names the site")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.kinds) - set(NOISES):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}")
    before, began = os.getloadavg()[0], monotonic()
    table = trio.run(measure, chosen.kinds or list(NOISES), chosen.rounds, chosen.named)
    MESSAGES.print(f"load when it began: {before:.1f}; took {monotonic() - began:.0f} s", style="dim")
    Console(highlight=False, width=180).print(table)
