"""The controller for hours: does its memory stay flat, and does nobody wait longer as time goes by?

    tools/bench soak [--nodes 100] [--machines 10000] [--rate 50] [--minutes 120] [--lines FILE]

The whole service runs as it would (HTTPS, controller, PostgreSQL); its nodes are simulated agents, and every machine
was made through the API. Then requests are due at a fixed rate, whether earlier ones were answered or not, and how long
one took is counted from when it was due: mostly reads (pages and single machines, tasks, one's own account), a fifth
orders (machines are shut down, started, now and then made and deleted). A line is printed for each minute, and
written as JSON to FILE: requests, their times, refusals, the memory and descriptors of the service, and PostgreSQL's
memory. The end compares the memory of the last tenth of the run with that of its second.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from uuid import uuid4

import trio

from tools.benchmarks.scale import Caller, Deployment, Size, Times, open_deployment, say

CLIENTS: Final = 64
"""Connections. A request that is due while all are busy waits for one, and that time counts."""
CREATORS: Final = 16
ROUTES: Final = (
    (30, "page"),
    (25, "machine"),
    (15, "me"),
    (10, "tasks"),
    (8, "shutdown"),
    (8, "start"),
    (2, "create"),
    (2, "delete"),
)
"""Of a hundred requests."""


@dataclass
class Minute:
    """The events of one minute, and the state at its end. Seconds, MiB."""

    number: int
    requests: int = 0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    service_mib: float = 0.0
    postgresql_mib: float = 0.0
    descriptors: int = 0
    machines: int = 0

    def __str__(self) -> str:
        refused = ", ".join(f"{count} {code}" for code, count in self.refused.items()) or "none"
        return (
            f"minute {self.number:>3}: {self.requests:,} requests, p50 {self.p50 * 1e3:,.0f} ms, "
            f"p99 {self.p99 * 1e3:,.0f} ms, max {self.longest * 1e3:,.0f} ms, refused {refused}; "
            f"service {self.service_mib:,.0f} MiB, {self.descriptors} descriptors; "
            f"PostgreSQL {self.postgresql_mib:,.0f} MiB; {self.machines:,} machines"
        )


class Load:
    """Requests by the mix of `ROUTES`, for machines without running tasks."""

    def __init__(self, deployment: Deployment, machines: list[str]) -> None:
        self._deployment = deployment
        self._random = random.Random(17)
        self._machines = machines
        self._running = deque(machines)
        self._stopped: deque[str] = deque()
        self._made: deque[tuple[str, str]] = deque()
        self.times = Times()
        self.refused: Counter[str] = Counter()

    async def run(self, rate: float, seconds: float) -> None:
        """Offer `rate` requests a second for so long."""
        send, receive = trio.open_memory_channel[float](1_000_000)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._client, receive.clone())
            async with send:
                began = trio.current_time()
                for number in range(int(rate * seconds)):
                    await trio.sleep_until(began + number / rate)
                    send.send_nowait(began + number / rate)

    async def _client(self, due: trio.MemoryReceiveChannel[float]) -> None:
        caller = self._deployment.caller()
        async with due:
            async for at in due:
                await self._request(caller)
                self.times.taken.append(trio.current_time() - at)
        await caller.aclose()

    async def _request(self, caller: Caller) -> None:
        [route] = self._random.choices([name for _, name in ROUTES], [share for share, _ in ROUTES])
        match route:
            case "page":
                await self._ask(caller, "GET", f"/vms?page={self._random.randint(1, 100)}&page_size=50")
            case "machine":
                await self._ask(caller, "GET", f"/vms/{self._random.choice(self._machines)}")
            case "me":
                await self._ask(caller, "GET", "/me")
            case "tasks":
                await self._ask(caller, "GET", "/tasks")
            case "shutdown" if self._running:
                await self._move(caller, self._running, self._stopped, "shutdown")
            case "start" if self._stopped:
                await self._move(caller, self._stopped, self._running, "start")
            case "delete" if len(self._made) > CLIENTS:
                machine, name = self._made.popleft()
                await self._ask(caller, "DELETE", f"/vms/{machine}", {"confirm": name, "destroy_disks": True})
            case _:
                wish = self._deployment.order | {"name": f"soak-{uuid4().hex[:12]}"}
                answer = await self._ask(caller, "POST", "/vms", wish)
                if answer is not None:
                    self._made.append((answer["vm"]["id"], wish["name"]))

    async def _move(self, caller: Caller, of: deque[str], to: deque[str], order: str) -> None:
        """The machine whose last order is longest ago: its last task has ended long since."""
        machine = of.popleft()
        moved = await self._ask(caller, "POST", f"/vms/{machine}/{order}", {})
        (to if moved is not None else of).append(machine)

    async def _ask(self, caller: Caller, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        status, answer = await caller.call(method, f"/api/v1{path}", body)
        if status >= 400:
            self.refused[f"{method} {json.loads(answer)['error']['code']}"] += 1
            return None
        return json.loads(answer) if method == "POST" else answer


async def soak(size: Size, rate: float, minutes: int, keep: Callable[[Minute], None]) -> list[Minute]:
    lines: list[Minute] = []
    async with open_deployment(size) as deployment:
        began = perf_counter()
        load = Load(deployment, await make(deployment))
        say(f"{size.machines:,} machines were made in {perf_counter() - began:.0f} s", style="dim")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, rate, minutes * 60.0)
            for number in range(1, minutes + 1):
                await trio.sleep(60)
                lines.append(await look(deployment, load, number))
                keep(lines[-1])
    return lines


async def make(deployment: Deployment) -> list[str]:
    """Create the machines in the state that their nodes report."""
    names = iter(range(deployment.size.machines))
    made: list[str] = []

    async def client() -> None:
        caller = deployment.caller()
        for number in names:
            wish = deployment.order | {"name": f"soak-{number}"}
            status, body = await caller.call("POST", "/api/v1/vms", wish)
            assert status == 201, body
            made.append(json.loads(body)["vm"]["id"])
        await caller.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(CREATORS):
            nursery.start_soon(client)
    await deployment.settled()
    return made


async def look(deployment: Deployment, load: Load, number: int) -> Minute:
    assert deployment.stack.controller.process is not None
    service = Path(f"/proc/{deployment.stack.controller.process.pid}")
    postmaster = (deployment.stack.folder / "postgresql/cluster/postmaster.pid").read_text().split("\n", 1)[0]
    times, refused, load.times, load.refused = load.times, load.refused, Times(), Counter()
    return Minute(
        number,
        len(times.taken),
        times.share(0.5),
        times.share(0.99),
        times.share(1),
        dict(refused),
        resident_mib(service),
        sum(proportional_mib(child) for child in family_of(postmaster)),
        len(list((service / "fd").iterdir())),
        await deployment.database.fetchval("SELECT count(*) FROM vms WHERE deleted_at IS NULL"),
    )


def resident_mib(process: Path) -> float:
    [kib] = [line.split()[1] for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(kib) / 1024


def proportional_mib(process: Path) -> float:
    """Memory that processes share is divided among them (Pss): PostgreSQL's buffers are counted once."""
    try:
        rollup = (process / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended meanwhile
    [kib] = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(kib) / 1024


def family_of(postmaster: str) -> list[Path]:
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [Path(f"/proc/{pid}") for pid in (postmaster, *children)]


def verdict(lines: Sequence[Minute]) -> str:
    """For the whole run: the worst minute, and the growth after the first tenth, in which caches fill."""
    tenth = max(1, len(lines) // 10)
    early, late = lines[tenth : 2 * tenth] or lines[-1:], lines[-tenth:]
    before = sum(line.service_mib for line in early) / len(early)
    after = sum(line.service_mib for line in late) / len(late)
    worst = max(line.p99 for line in lines)
    return (
        f"R17 {sum(line.requests for line in lines):,} requests: the worst minute's p99 is {worst * 1e3:,.0f} ms "
        f"(goal 1,000); the service had {before:,.0f} MiB and has {after:,.0f} ({after / before:.2f} times)"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="tools/bench soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--machines", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--minutes", type=int, default=120)
    parser.add_argument("--lines", type=Path, default=Path("build/soak.jsonl"))
    options = parser.parse_args(arguments)
    options.lines.write_text("")

    def keep(line: Minute) -> None:
        say(str(line))
        with options.lines.open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")

    size = Size(options.nodes, options.machines)
    lines = trio.run(partial(soak, size, options.rate, options.minutes, keep))
    say(verdict(lines))


if __name__ == "__main__":
    main()
