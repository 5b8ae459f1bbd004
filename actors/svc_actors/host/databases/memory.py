"""How much memory the sessions of sites take in an engine, and which of them are ended.

Neither MariaDB 10.11 nor PostgreSQL limits a session: MariaDB's variable counts and does not refuse, and a user of
PostgreSQL sets work_mem freely. Two mechanisms together do:

- a kernel limit that fails one allocation: the statement ends with "out of memory", and the engine goes on;
- a check each second that ends the sessions of the site that takes the most, largest first, before others run into that
  limit.

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
"""Rounding, so that a small change of the machine's memory (a balloon) does not restart an engine."""
SITE_BYTES: Final = 512 * _MIB
"""Of all sessions of a site."""
SESSION_BYTES: Final = 256 * _MIB
"""Of one session: the largest packet (64 MiB) is held some three times while it is inserted."""
LOOK_SECONDS: Final = 1.0
IDLE_BYTES: Final = 16 * _MIB
"""Idle sessions below this belong to an application's pool: they take some 3 MiB, most of them shared."""
_RANKS: Final = 3
"""Number of ranks of `_rank`."""
RESERVE_BYTES: Final = SESSION_BYTES + 64 * _MIB
"""Kept free of the group's limit: what one session may take until the next check."""


def share_of(machine: int) -> int:
    """Bytes for the sessions of one engine together: a quarter of the machine, at least 512 MiB."""
    return max(2 * _STEP, machine // 4 // _STEP * _STEP)


SHARE_BYTES: Final = share_of(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
OWNER_BYTES: Final = min(1024 * _MIB, SHARE_BYTES)
"""Of one session of the panel's own in PostgreSQL: a row of 60 MB is held some eight times while it is written."""


_USER: Final = re.compile(r"(?:owner_)?s[0-9]+_\w+")


def is_of_site(user: str) -> bool:
    return _USER.fullmatch(user) is not None


@dataclass(frozen=True)
class Session:
    """A session of a site's user or of a database's owner. `number` is the engine's id of it."""

    number: int
    user: str
    bytes: int
    idle: bool = False

    @property
    def site(self) -> str:
        return self.user.removeprefix("owner_").partition("_")[0]

    @property
    def is_owner(self) -> bool:
        """Whether it is the panel's own, for a dump or a load."""
        return self.user.startswith("owner_")


def to_end(
    sessions: Collection[Session], site_most: int = SITE_BYTES, most: int = SHARE_BYTES * 3 // 4
) -> list[Session]:
    """First the sessions with which a site exceeds its limit; then those of the largest site, until all together are
    within theirs. For the latter, idle sessions, which free little, and the panel's own come last. An owner counts by
    itself, and may have `OWNER_BYTES`."""
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
    """The limit for all together: what they have now, unless the engine's control group is nearly full. If the group
    cannot be read, three quarters of the engine's share. Blocks."""
    group = group_use(pid)
    if group is None:
        return SHARE_BYTES * 3 // 4
    # Not the sum of the sessions, in which pages that processes share count for each of them.
    used, limit = group
    return sum(session.bytes for session in sessions) - max(0, used - (limit - RESERVE_BYTES))


def resident(pid_file: Path) -> tuple[int, int]:
    """The process that such a file names, and the bytes of its private memory; (0, 0) if none runs. Blocks."""
    try:
        pid = int(pid_file.read_text().split()[0])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return pid, int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0, 0
