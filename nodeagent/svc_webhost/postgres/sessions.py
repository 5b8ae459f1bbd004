"""Memory of PostgreSQL's sessions, as the kernel counts it for their processes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from svc_webhost.databases.memory import Session

_TITLE: Final = re.compile(r"postgres: ((?:owner_)?s[0-9]+_\w+) \w+ \[local\]")
_WORKER: Final = re.compile(r"postgres: parallel worker for PID ([0-9]+)")
_FIELD: Final = re.compile(r"^(RssAnon|RssShmem):\s+([0-9]+) kB$", re.MULTILINE)
_COMMON_BYTES: Final = 128 << 20
"""Shared memory that all processes have, mostly shared_buffers. Anything above this comes from parallel queries."""


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
