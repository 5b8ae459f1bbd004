"""B15: what 2,000 readers of the event stream and everybody else wait while 50 changes a second happen.

The server has a core of its own where there are two; the readers (`event_crowd`) and what makes the changes and asks in
between are processes on the other one, with PostgreSQL. Delivery is counted from the beginning of the transaction that
makes the change to its reading by each reader. Run as `python -m tools.benchmarks.events [READERS]`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import trio

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import Database, NewEvent, append, embedded, migrate
from tests.support.certificates import self_signed
from tools.benchmarks import Ratio
from tools.benchmarks.event_crowd import Delivered
from tools.benchmarks.http import Server, seed, serving

READERS: Final = 2_000
CHANGES_A_SECOND: Final = 50
CHANGES: Final = 750
DELIVERY_GOAL: Final = 0.5
REQUEST_GOAL: Final = 0.05
_ASK_EVERY: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Found:
    """`answered`: seconds of each other request. `processor`: the part of a core that the server took."""

    delivered: Delivered
    answered: Sequence[float]
    processor: float


def measure() -> list[Ratio]:
    found = trio.run(_measure, READERS)
    name = f"B15 {READERS:,} readers, {CHANGES_A_SECOND} changes a second:"
    answered = found.answered[len(found.answered) * 99 // 100]
    return [
        Ratio(f"{name} p99 of delivery : goal", found.delivered.p99, DELIVERY_GOAL, "s", 1, False),
        Ratio(f"{name} p99 of GET /me : goal", answered, REQUEST_GOAL, "s", 1, False),
        Ratio(f"{name} the server's part of a core", found.processor, 1, "cores", 1, False),
    ]


async def _measure(readers: int) -> Found:
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {1})  # with PostgreSQL and the readers, which inherit it
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    self_signed(folder)
    async with embedded(folder / "postgresql") as url, Database.open(url) as database:
        await migrate(database)
        token, _ = await seed(database)
        async with serving("ours", folder, url) as server:
            return await _crowd(server, token, database, readers)


async def _crowd(server: Server, token: str, database: Database, readers: int) -> Found:
    command = [sys.executable, "-m", "tools.benchmarks.event_crowd", str(server.port), token, str(readers)]
    crowd = await trio.lowlevel.open_process([*command, str(CHANGES)], stdout=subprocess.PIPE)
    assert crowd.stdout is not None
    answered: list[float] = []
    try:
        assert await crowd.stdout.receive_some() == b"open\n"
        used, began = _processor(server.pid), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, server.port, token, answered)
            await _change(database)
            nursery.cancel_scope.cancel()
        processor = (_processor(server.pid) - used) / (trio.current_time() - began)
        with trio.fail_after(60):  # what is on its way still counts, and nothing may be lost
            delivered = Delivered(**json.loads(b"".join([part async for part in crowd.stdout])))
    finally:
        crowd.kill()
        await crowd.wait()
    assert delivered.events == readers * CHANGES, "a reader read something twice"
    return Found(delivered, sorted(answered), processor)


def _processor(pid: int) -> float:
    """Seconds of processor time that a process has used (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def _change(database: Database) -> None:
    began = trio.current_time()
    for number in range(CHANGES):
        await trio.sleep_until(began + number / CHANGES_A_SECOND)
        async with database.transaction() as tx:
            payload = {"id": str(number), "status": "running", "name": f"vm-{number}", "made_at": time.monotonic()}
            await append(tx, NewEvent(kind=ControllerEvent.VM, subject=str(number), payload=payload))


async def _ask(port: int, token: str, answered: list[float]) -> None:
    """Somebody's own account, twenty times a second."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(verify=False, base_url=f"https://127.0.0.1:{port}", headers=headers) as http:
        while True:
            began = time.monotonic()
            (await http.get("/api/v1/me", timeout=30)).raise_for_status()
            answered.append(time.monotonic() - began)
            await trio.sleep(_ASK_EVERY)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else READERS
    found = trio.run(_measure, wanted)
    print(f"{wanted:,} readers: {found.delivered}")
    middle, slow = (found.answered[len(found.answered) * part // 100] for part in (50, 99))
    print(f"GET /me: {len(found.answered)} answers, median {middle:.4f} s, p99 {slow:.4f} s")
    print(f"the server took {found.processor:.2f} of a core")
