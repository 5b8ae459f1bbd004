"""The kernel's view of this server: how full and busy it is, and whether its clock is synchronised."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final, Protocol

from svc_webhost.site_use import SiteUse, site_uses

_TIME_ERROR: Final = 5
"""The result of adjtimex(2) if the clock is not synchronised."""
_ESTABLISHED: Final = "01"
"""A state in Linux's include/net/tcp_states.h."""
_VISITOR_BITS: Final = 64
"""Bits of an IPv6 address: all addresses with the same prefix of this length count as one visitor."""
_TIMEX_BYTES: Final = 512
"""More bytes than the call's structure has."""


@dataclass(frozen=True)
class FileSystemUse:
    """How full a file system is, in percent of what users other than root may use; `inodes` is None if the file system
    has no fixed number of them."""

    bytes: float
    inodes: float | None


class Vitals(Protocol):
    """Each method raises OSError if the kernel does not report the value."""

    def filled(self, folder: Path) -> FileSystemUse: ...

    def memory(self) -> float:
        """Unavailable memory, in percent."""
        ...

    def load(self) -> float:
        """Load per processor over the last five minutes."""
        ...

    def synchronised(self) -> bool:
        """Whether a time service keeps the clock."""
        ...

    def sites(self) -> Mapping[int, SiteUse]:
        """What the programs of each site use, by its number."""
        ...

    def connections_by_address(self, ports: Collection[int]) -> Mapping[str, int]:
        """Number of connections to these ports by address; an IPv6 /64 network counts as one."""
        ...


@dataclass(frozen=True)
class SystemVitals:
    """The vitals of this machine."""

    def filled(self, folder: Path) -> FileSystemUse:
        seen = os.statvfs(folder)
        used, usable = seen.f_blocks - seen.f_bfree, seen.f_blocks - seen.f_bfree + seen.f_bavail
        inodes = 100 * (1 - seen.f_favail / seen.f_files) if seen.f_files else None
        return FileSystemUse(100 * used / usable if usable else 100.0, inodes)

    def memory(self) -> float:
        said = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        try:
            total, available = (int(said[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        except (KeyError, ValueError) as error:
            raise OSError("/proc/meminfo does not say how much memory there is") from error
        return 100 * (1 - available / total)

    def load(self) -> float:
        return os.getloadavg()[1] / len(os.sched_getaffinity(0))

    def synchronised(self) -> bool:
        libc = ctypes.CDLL(None, use_errno=True)
        # With all fields zero, the call changes nothing.
        state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
        if state < 0:
            raise OSError(ctypes.get_errno(), "the kernel does not say how its clock is kept")
        return state != _TIME_ERROR

    def sites(self) -> Mapping[int, SiteUse]:
        return site_uses()

    def connections_by_address(self, ports: Collection[int]) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
            if not table.exists():
                continue  # The kernel has no IPv6.
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) in ports:
                    found[_caller(remote.partition(":")[0])] += 1
        return found


def _caller(digits: str) -> str:
    """An address in the form of /proc/net/tcp: 32-bit words in this machine's byte order."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    address = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    if isinstance(address, IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, _VISITOR_BITS), strict=False))
