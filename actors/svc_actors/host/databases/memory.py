"""How much memory the sessions of sites take in an engine, and which of them are ended.

Neither MariaDB 10.11 nor PostgreSQL bounds a session: a variable of MariaDB is counted and not refused, and a user of
PostgreSQL sets work_mem as it likes. Two things together do:

- a limit of the kernel that fails one allocation: the statement ends with "out of memory", the engine goes on;
- a look each second that ends the sessions of the site that takes the most, largest first, before that limit is met by
  others.

The sum fits the machine: `SHARE_BYTES` for each engine, whatever its sites do.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_actors.host.site_use import group_use

_MIB: Final = 1 << 20
_STEP: Final = 256 * _MIB
"""Machines of nearly the same size get the same, so that an engine is not started anew for a balloon."""
SITE_BYTES: Final = 512 * _MIB
"""Of all sessions of a site."""
SESSION_BYTES: Final = 256 * _MIB
"""Of one: the largest packet (64 MiB) is held some three times while it is inserted."""
LOOK_SECONDS: Final = 1.0
IDLE_BYTES: Final = 16 * _MIB
"""An idle session with less is one of an application's pool: it takes some 3 MiB, most of them shared."""
_RANKS: Final = 3
"""Of `_rank`."""
RESERVE_BYTES: Final = SESSION_BYTES + 64 * _MIB
"""Of the group's limit: what one session may take until the next look."""


def share_of(machine: int) -> int:
    """Bytes that the sessions of one engine have together: a quarter of the machine, 512 MiB at least."""
    return max(2 * _STEP, machine // 4 // _STEP * _STEP)


SHARE_BYTES: Final = share_of(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
OWNER_BYTES: Final = min(1024 * _MIB, SHARE_BYTES)
"""Of one session of the panel's own in PostgreSQL: a row of 60 MB is held some eight times while it is written."""


_USER: Final = re.compile(r"(?:owner_)?s[0-9]+_\w+")


def is_of_site(user: str) -> bool:
    return _USER.fullmatch(user) is not None


@dataclass(frozen=True)
class Session:
    """Of a site's user or a database's owner. `number` is what the engine calls it."""

    number: int
    user: str
    bytes: int
    idle: bool = False

    @property
    def site(self) -> str:
        return self.user.removeprefix("owner_").partition("_")[0]

    @property
    def is_owner(self) -> bool:
        """It is the panel's own, for a dump or a load."""
        return self.user.startswith("owner_")


def to_end(
    sessions: Collection[Session], site_most: int = SITE_BYTES, most: int = SHARE_BYTES * 3 // 4
) -> list[Session]:
    """Those by which a site has more than it may; then those of the largest site, while all together have more. Of
    these last what gives little, which is an idle session, and what is the panel's own, come when nothing else is left.
    An owner counts by itself, and may have `OWNER_BYTES`."""
    sites = defaultdict(list)
    for session in sorted(sessions, key=lambda each: each.bytes):
        sites[session.user if session.is_owner else session.site].append(session)
    ended = []

    def taken(site: str) -> int:
        return sum(session.bytes for session in sites[site])

    for site, own in sites.items():
        bound = max(site_most, OWNER_BYTES) if own[0].is_owner else site_most
        while taken(site) > bound:
            ended.append(own.pop())
    for rank in range(_RANKS):
        while sum(taken(site) for site in sites) > most:
            found = [site for site, own in sites.items() if any(_rank(each) == rank for each in own)]
            if not found:
                break
            own = sites[max(found, key=taken)]
            ended.append(max((each for each in own if _rank(each) == rank), key=lambda each: each.bytes))
            own.remove(ended[-1])
    return ended


def _rank(session: Session) -> int:
    if session.is_owner:
        return 2
    return int(session.idle and session.bytes < IDLE_BYTES)


def most_in_group(sessions: Collection[Session], pid: int) -> int:
    """What all together may have: all that they have while the control group of the engine is not nearly full. Where
    the group cannot be read, three quarters of the engine's share. Blocks."""
    group = group_use(pid)
    if group is None:
        return SHARE_BYTES * 3 // 4
    # Not the sum of the sessions: pages that processes share count for each of them there.
    used, limit = group
    return sum(session.bytes for session in sessions) - max(0, used - (limit - RESERVE_BYTES))


def resident(pid_file: Path) -> tuple[int, int]:
    """The process that such a file names, and the bytes of memory that are its own; (0, 0) where none runs. Blocks."""
    try:
        pid = int(pid_file.read_text().split()[0])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return pid, int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0, 0
