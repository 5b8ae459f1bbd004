"""Runs apt and dpkg: without questions, keeping changed configuration files, and waiting for the lock that another run
holds."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

import trio

from svc_common.errors import ServiceError

QUIET: Final = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1"}
APT_GET: Final = ("/usr/bin/apt-get", "-o", "DPkg::Lock::Timeout=600")
KEEP: Final = ("--force-confdef", "--force-confold")
_LOCKED: Final = re.compile(r"Unable to lock|Could not get lock|#db-lock")
"""Found in the last line of apt's or dpkg's output, which becomes the error of the failed program."""
_AGAIN_SECONDS: Final = 5.0
_TRIES: Final = 60


class RunProgram(Protocol):
    """Runs a program to its end. Raises if it fails, with the last line of its output."""

    async def __call__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        read: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None: ...


async def configure_rest(run: RunProgram, seconds: float) -> None:
    """Finish what an earlier, interrupted installation has left undone."""
    await run_unlocked(run, ("/usr/bin/dpkg", *KEEP, "--configure", "-a"), seconds)


async def run_unlocked(run: RunProgram, command: Sequence[str], seconds: float) -> None:
    """Run a program once the lock is free: for dpkg, and for apt's lists, which do not wait for the lock themselves."""
    for left in reversed(range(_TRIES)):
        try:
            await run(command, seconds=seconds, environment=QUIET)
            return
        except ServiceError as error:
            if not left or _LOCKED.search(error.message) is None:
                raise
        await trio.sleep(_AGAIN_SECONDS)
