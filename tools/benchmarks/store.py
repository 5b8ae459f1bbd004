"""B10: a cold start compared with a bare initdb and start.

Run as `python -m tools.benchmarks.store`. Our turns and the peer's alternate, and the median counts.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import trio

from svc_actors.store import Database, embedded, migrate
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.reach import server_account
from tools.benchmarks import Ratio

STARTS = 5


async def start_ours(folder: Path) -> float:
    """Seconds from an empty folder to a migrated database that answers."""
    began = perf_counter()
    async with embedded(folder) as url, Database.open(url) as database:
        await migrate(database)
        return perf_counter() - began


def start_bare(folder: Path) -> float:
    """Seconds for initdb and pg_ctl start, as the same user."""
    account = server_account()
    user, group = (account.uid, account.gid) if account else (None, None)
    folder.mkdir()
    if account is not None:
        shutil.chown(folder, account.uid, account.gid)

    def run(program: str, *arguments: str) -> None:
        command = [str(PROGRAMS / program), "-D", str(folder / "cluster"), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/", user=user, group=group)

    began = perf_counter()
    run("initdb", "--auth=trust")
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", f"-h '' -k {folder}", "start")
    took = perf_counter() - began
    run("pg_ctl", "-w", "stop")
    return took


def measure() -> list[Ratio]:
    """B10: the time that our start takes longer than a bare one, compared with the allowed second. Less is better."""
    longer = []
    for _ in range(STARTS):
        with _folder() as folder:
            ours = trio.run(start_ours, folder / "ours")
            longer.append(ours - start_bare(folder / "bare"))
    name = "B10 cold start past initdb + start : 1 s"
    return [Ratio(name, median(longer), 1.0, "s", goal=1.0, higher_is_better=False)]


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="svc-bench-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main() -> None:
    for row in measure():
        print(f"{row.name}: {row.ours:,.2f} : {row.peer:,.2f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main()
