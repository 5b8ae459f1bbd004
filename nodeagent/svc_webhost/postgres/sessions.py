"""Memory of PostgreSQL's sessions: counted by the kernel for their processes, and raised for the panel's own dumps and
loads.

A session of a user may have `SESSION_BYTES` and spill 1 GB. Data created within that can need more when it is read or
loaded: a row of 60 MB is 120 MB as text, in a buffer of twice that, and an index is built from a whole table at once.
Without more room such a database could be neither backed up nor restored.

The kernel limits the memory of each process; the limit is raised once the process exists. So the session waits a second
before it does anything (`WAITING`), and is found meanwhile by the owner's name in its title.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_webhost.databases.memory import OWNER_BYTES, Session
from svc_webhost.databases.names import UserName

_TITLE: Final = re.compile(r"postgres: ((?:owner_)?s[0-9]+_\w+) \w+ \[local\]")
_WORKER: Final = re.compile(r"postgres: parallel worker for PID ([0-9]+)")
_FIELD: Final = re.compile(r"^(RssAnon|RssShmem):\s+([0-9]+) kB$", re.MULTILINE)
_COMMON_BYTES: Final = 128 << 20
"""Shared memory that all processes have, mostly shared_buffers. Anything above this comes from parallel queries."""

WAITING: Final = "-c post_auth_delay=1"
"""How many seconds a session waits after its start, set for one session (PGOPTIONS)."""
_LOOK: Final = 0.1
_LEAST_FILES: Final = 1 << 20
_MOST_FILES: Final = 1 << 30

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


def sessions_of(postmaster: int) -> list[Session]:
    """Sessions of sites' users. The memory of a parallel worker counts for its leader. Blocks."""
    found: dict[int, Session] = {}
    workers: list[tuple[int, int]] = []
    for pid in children(postmaster):
        try:
            title = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0 ")
            sizes = dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_text()))
        except OSError:
            continue  # The process has ended.
        shared = int(sizes.get("RssShmem", 0)) << 10
        taken = (int(sizes.get("RssAnon", 0)) << 10) + max(0, shared - _COMMON_BYTES)
        if user := _TITLE.match(title):
            found[pid] = Session(pid, user[1], taken, title.endswith(" idle"))
        elif leader := _WORKER.match(title):
            workers.append((int(leader[1]), taken))
    for pid, taken in workers:
        if pid in found:
            found[pid] = replace(found[pid], bytes=found[pid].bytes + taken)
    return list(found.values())


def children(pid: int) -> list[int]:
    """The processes of sessions and the server's own. Blocks."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def files_kib(folder: Path) -> int:
    """KiB of temporary files for a process of the owner: half of the disk's free space. Blocks."""
    disk = os.statvfs(folder)
    return min(_MOST_FILES, max(_LEAST_FILES, disk.f_bavail * disk.f_frsize // 2 >> 10))


async def keep_memory_limits(postmaster: int, account: str, owner: UserName) -> None:
    """Until it is cancelled, give each session of this owner `OWNER_BYTES`. `account`: PostgreSQL's system account,
    which raises the limits of its own processes, up to the hard limit with which PostgreSQL was started. (Root of a
    container may not raise them.)"""
    known: set[int] = set()
    while True:
        for pid in await trio.to_thread.run_sync(_new, postmaster, owner, known):
            command = (
                *("/usr/bin/setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"),
                *("/usr/bin/prlimit", f"--pid={pid}", f"--data={OWNER_BYTES}:"),
            )
            ended = await trio.run_process(command, check=False, capture_stderr=True)
            # The process may have ended; and if its work is small, it succeeds without more memory.
            if ended.returncode != 0:
                log.warning("databases.no_room_for_owner", owner=owner, error=ended.stderr.decode().strip())
        await trio.sleep(_LOOK)


def _new(postmaster: int, owner: UserName, known: set[int]) -> list[int]:
    """Sessions of the owner that were not `known` yet. Blocks."""
    there = set(children(postmaster))
    known &= there
    found = []
    for pid in there - known:
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # The process has ended.
        if not title.startswith(b"postgres: "):
            continue  # The process has just been started, and its title does not name the user yet.
        known.add(pid)
        if title.startswith(f"postgres: {owner} ".encode()):
            found.append(pid)
    return found
