"""B6 and B11: what an ask costs beside one over bare Trio channels, and what a live actor weighs beside a bare task.

Run as `python -m tools.benchmarks.runtime`. Ours and the peer's turns alternate, and the median counts. Memory is
resident memory, each turn in a fresh process.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import trio
import trio.testing

from svc_actors.runtime import Actor, ActorSystem
from tools.benchmarks import Ratio

ROUNDS = 5
ASKS = 20_000
ACTORS = 10_000


class Counter(Actor):
    total = 0

    async def add(self, amount: int) -> int:
        self.total += amount
        return self.total


async def ask_actor(asks: int) -> float:
    """Asks a second, one after the other, of one live actor."""
    async with ActorSystem.open() as system:
        system.register(Counter, lambda key: Counter())
        ref = system.ref(Counter, "x")
        await ref.ask(Counter.add, 1)
        began = perf_counter()
        for _ in range(asks):
            await ref.ask(Counter.add, 1)
        return asks / (perf_counter() - began)


@dataclass(slots=True)
class Request:
    amount: int
    reply: trio.MemorySendChannel[int]


async def ask_over_channels(asks: int) -> float:
    """The same over memory channels: one for requests, and one for the replies that the asker uses again and again,
    which is the cheapest there is (a new one for each ask costs a quarter more)."""
    async with trio.open_nursery() as nursery:
        requests, mailbox = trio.open_memory_channel[Request](256)

        async def serve() -> None:
            total = 0
            async for request in mailbox:
                total += request.amount
                request.reply.send_nowait(total)

        nursery.start_soon(serve)
        reply, answers = trio.open_memory_channel[int](1)
        began = perf_counter()
        for _ in range(asks):
            await requests.send(Request(1, reply))
            await answers.receive()
        rate = asks / (perf_counter() - began)
        nursery.cancel_scope.cancel()
    return rate


@dataclass(slots=True)
class MachineState:
    """About as much as a machine's row."""

    name: str
    node: str
    state: str = "running"
    cpus: int = 2
    memory: int = 2 << 30
    addresses: list[str] = field(default_factory=list)
    version: int = 1


class Machine(Actor):
    async def activate(self) -> None:
        self.state = MachineState(f"machine-{self.key}", "node-1", addresses=[f"10.0.0.{self.key}"])

    async def observe(self, state: str) -> int:
        self.state.state = state
        self.state.version += 1
        return self.state.version


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def weigh_actors(actors: int) -> float:
    """Bytes for each live actor, parked after having handled one ask."""
    async with ActorSystem.open() as system:
        system.register(Machine, lambda key: Machine())
        await system.ref(Machine, "first").ask(Machine.observe, "stopped")
        before = resident()
        for number in range(actors):
            await system.ref(Machine, str(number)).ask(Machine.observe, "stopped")
        return (resident() - before) / actors


async def weigh_tasks(tasks: int) -> float:
    """Bytes for each bare task that sleeps."""
    async with trio.open_nursery() as nursery:
        before = resident()
        for _ in range(tasks):
            nursery.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        weight = (resident() - before) / tasks
        nursery.cancel_scope.cancel()
    return weight


def measure_asks() -> Ratio:
    """B6. Rates, so more is better."""
    ours, peer = _interleaved(lambda: trio.run(ask_actor, ASKS), lambda: trio.run(ask_over_channels, ASKS))
    return Ratio("B6 actor ask : ask over Trio channels", ours, peer, "asks/s", goal=0.7, higher_is_better=True)


def measure_memory() -> Ratio:
    """B11. Bytes, so less is better."""
    ours, peer = _interleaved(lambda: _in_a_process("actors"), lambda: _in_a_process("tasks"))
    name = f"B11 memory of {ACTORS:,} live actors : bare tasks"
    return Ratio(name, ours, peer, "bytes each", goal=3.0, higher_is_better=False)


def measure() -> list[Ratio]:
    return [measure_asks(), measure_memory()]


def _interleaved(ours: Callable[[], float], peer: Callable[[], float]) -> tuple[float, float]:
    turns = [(ours(), peer()) for _ in range(ROUNDS)]
    return median(turn[0] for turn in turns), median(turn[1] for turn in turns)


WEIGHINGS: dict[str, Callable[[int], Awaitable[float]]] = {"actors": weigh_actors, "tasks": weigh_tasks}


def _in_a_process(what: str) -> float:
    command = [sys.executable, "-m", "tools.benchmarks.runtime", what]
    root = Path(__file__).resolve().parents[2]
    return float(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout)


def main(arguments: list[str]) -> None:
    for what in arguments:
        print(trio.run(WEIGHINGS[what], ACTORS))
    if not arguments:
        for row in measure():
            print(f"{row.name}: {row.ours:,.0f} : {row.peer:,.0f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main(sys.argv[1:])
