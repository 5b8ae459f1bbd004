"""The room that a dump and a load of the panel's own have, and sessions of users have not.

A session of a user may have `SESSION_BYTES` and spill 1 GB. What users made within that can take more when it is read
or made anew: a row of 60 MB is 120 MB as text, in a buffer of twice that, and an index is built from a whole table at
once. Without more room such a database could be neither backed up nor restored.

The limit of memory is the kernel's, of each process, and is raised once the process is there. So the session waits a
second before it does anything (`WAITING`), and is found meanwhile by the owner's name in its title.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_actors.host.databases.memory import OWNER_BYTES
from svc_actors.host.databases.names import UserName
from svc_actors.host.postgres.sessions import children

WAITING: Final = "-c post_auth_delay=1"
"""Of a session, in seconds (PGOPTIONS)."""
_LOOK: Final = 0.1
_LEAST_FILES: Final = 1 << 20
_MOST_FILES: Final = 1 << 30

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


def files_kib(folder: Path) -> int:
    """KiB that a process of the owner may have in temporary files: half of what the disk has free. Blocks."""
    disk = os.statvfs(folder)
    return min(_MOST_FILES, max(_LEAST_FILES, disk.f_bavail * disk.f_frsize // 2 >> 10))


async def give_memory(postmaster: int, account: str, owner: UserName) -> None:
    """Until it is cancelled, each session of this owner gets `OWNER_BYTES`. `account`: the one that PostgreSQL runs as.
    It raises the limit itself, up to the one that PostgreSQL was started with: root of a container may not."""
    known: set[int] = set()
    while True:
        for pid in await trio.to_thread.run_sync(_new, postmaster, owner, known):
            command = (
                *("/usr/bin/setpriv", f"--reuid={account}", f"--regid={account}", "--clear-groups"),
                *("/usr/bin/prlimit", f"--pid={pid}", f"--data={OWNER_BYTES}:"),
            )
            ended = await trio.run_process(command, check=False, capture_stderr=True)
            if ended.returncode != 0:  # It may have ended, and what needs no room goes on without.
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
            continue  # It has ended.
        if not title.startswith(b"postgres: "):
            continue  # It has just been started, and does not say yet whose it is.
        known.add(pid)
        if title.startswith(f"postgres: {owner} ".encode()):
            found.append(pid)
    return found
