"""How much memory the sessions of sites take in a database engine, and which sessions are ended.

Neither MariaDB 10.11 nor PostgreSQL limits the memory of a session: MariaDB counts user variables and still stores
them, and a user of PostgreSQL sets work_mem at will. Two measures together do:

- a limit of the kernel that fails one allocation: the statement ends with "out of memory", the engine goes on;
- a look each second that ends the largest sessions of the site that takes most, before other sites meet that limit.

The sum fits the machine: `SHARE_BYTES` for each engine, whatever its sites do.

Rejected: max_session_mem_used of MariaDB alone (measured: 268 MB were held at a limit of 32 MB); smaller packets, which
refuse rows that sites have and only slow an attack down; and a control group for mariadbd, which kills the server where
RLIMIT_DATA fails a statement. PostgreSQL has both, as its processes share memory that RLIMIT_DATA does not count.

Why: docs/decisions/0050-bounds-on-databases.md.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_webhost.site_use import group_use

_MIB: Final = 1 << 20
_STEP: Final = 256 * _MIB
"""Shares are rounded to this: if a balloon changes the machine's memory a little, that must not restart an engine."""
SITE_BYTES: Final = 512 * _MIB
"""For all sessions of a site together."""
SESSION_BYTES: Final = 256 * _MIB
"""The most bytes of one session: while the largest packet (64 MiB) is inserted, it is held in memory some three
times."""
LOOK_SECONDS: Final = 1.0
IDLE_BYTES: Final = 16 * _MIB
"""Idle sessions with less than this belong to an application's connection pool: they take some 3 MiB, most of it
shared."""
_RANKS: Final = 3
"""How many ranks `_rank` has."""
RESERVE_BYTES: Final = SESSION_BYTES + 64 * _MIB
"""Bytes kept free below the group's limit: as much as one session may take until the next look."""


def share_of(machine: int) -> int:
    """Bytes for all sessions of one engine: a quarter of the machine, and at least 512 MiB."""
    # A quarter, so both engines together take half of the machine. At least two steps, so that one session, which may
    # have 256 MiB, cannot take all of it.
    return max(2 * _STEP, machine // 4 // _STEP * _STEP)


SHARE_BYTES: Final = share_of(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
OWNER_BYTES: Final = min(1024 * _MIB, SHARE_BYTES)
"""The most bytes of one session of the panel itself in PostgreSQL: while a row of 60 MB is written, it is held some
eight times. With `SESSION_BYTES` the dump of such a row failed, and with it each backup of that site."""


_USER: Final = re.compile(r"(?:owner_)?s[0-9]+_\w+")


def is_of_site(user: str) -> bool:
    return _USER.fullmatch(user) is not None


@dataclass(frozen=True)
class Session:
    """A session of a site's user or of a database's owner. `number`: the engine's id of the session."""

    number: int
    user: str
    bytes: int
    idle: bool = False

    @property
    def site(self) -> str:
        return self.user.removeprefix("owner_").partition("_")[0]

    @property
    def is_owner(self) -> bool:
        """Whether the panel itself works in this session (for a dump or a load, say)."""
        return self.user.startswith("owner_")


def to_end(
    sessions: Collection[Session], site_most: int = SITE_BYTES, most: int = SHARE_BYTES * 3 // 4
) -> list[Session]:
    """Sessions to end: the largest ones of each site that is above `site_most`; then, while all together are above
    `most`, the largest one of the largest site. Idle sessions, whose end frees little, and the panel's own sessions are
    ended only when no others are left. An owner counts as a site by itself, and may have `OWNER_BYTES`."""
    # Sessions of the largest site are ended first, and not simply the largest session: otherwise many small sessions of
    # one site could displace the only session of another.
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
            # The largest site is determined again after each session: once it has given up enough, another site is the
            # largest.
            found = [site for site, own in sites.items() if any(_rank(each) == rank for each in own)]
            if not found:
                break
            own = sites[max(found, key=taken)]
            ended.append(max((each for each in own if _rank(each) == rank), key=lambda each: each.bytes))
            own.remove(ended[-1])
    return ended


def _rank(session: Session) -> int:
    # A session with a lower rank is ended earlier. Small idle sessions have a higher rank, because they share most of
    # their memory: ending them frees next to nothing, and breaks the sites to whose connection pools they belong.
    if session.is_owner:
        return 2
    return int(session.idle and session.bytes < IDLE_BYTES)


def most_in_group(sessions: Collection[Session], pid: int) -> int:
    """The bytes that all sessions together may have: what they have now, minus what the engine's control group
    uses above its limit less `RESERVE_BYTES`. If the group cannot be read, three quarters of the engine's share.
    Blocks."""
    group = group_use(pid)
    if group is None:
        return SHARE_BYTES * 3 // 4
    # The control group counts each page once, but the sum over the sessions counts shared pages once for each process.
    # With the sum alone, some 130 idle connections exceeded the limit of 2 GiB, and sessions were ended all the time.
    used, limit = group
    return sum(session.bytes for session in sessions) - max(0, used - (limit - RESERVE_BYTES))


def resident(pid_file: Path) -> tuple[int, int]:
    """The process that the pid file names, and its anonymous memory in bytes; (0, 0) if no such process runs.
    Blocks."""
    try:
        pid = int(pid_file.read_text().split()[0])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return pid, int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0, 0
