"""Confines a process to one folder. It cannot regain what it gave up."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final

from svc_webhost.confined import kernel

_MIB: Final = 1 << 20
_LIMITS: Final = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_DATA: 384 * _MIB,
    resource.RLIMIT_FSIZE: 64 << 30,
    resource.RLIMIT_NOFILE: 1024,
}


class ConfinementError(Exception):
    """The process could not be confined, and must not serve."""


@dataclass(frozen=True)
class Identity:
    """The account of a site."""

    uid: int
    gid: int


def confine(root: int, identity: Identity, *, without_landlock: bool) -> int:
    """Become `identity`, with access below the descriptor `root` alone. Returns the version of Landlock that enforces
    this; 0 if the kernel has no Landlock and `without_landlock` permits that."""
    if identity.uid == 0 or identity.gid == 0:
        raise ConfinementError("files are never touched as root")
    for limit, most in _LIMITS.items():
        resource.setrlimit(limit, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    kernel.refuse_new_privileges()
    os.umask(0o022)
    abi = kernel.landlock_abi()
    if abi >= kernel.LOWEST_ABI:
        kernel.landlock(root, abi)
        return abi
    if not without_landlock:
        raise ConfinementError(f"this kernel has Landlock {abi}, and {kernel.LOWEST_ABI} is needed")
    return 0


def start_no_processes() -> None:
    """Call this when all threads run: neither a thread nor a process can be started afterwards."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
