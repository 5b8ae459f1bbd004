"""Logs of sites' programs, `logs/sites/s1001/php.log`: one process writes all of them (`log_writer`), as a service of
the launcher."""

from __future__ import annotations

import array
import fcntl
import os
import sys
import termios
from pathlib import Path
from typing import Final

import trio

from svc_webhost import log_writer
from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Service, ServiceName
from svc_webhost.log_writer import LARGEST, RATE

NAME: Final = ServiceName("logs")
_PROGRAM: Final = Path(log_writer.__file__)
_WRITTEN_WITHIN: Final = 2.0
_LOOK_AGAIN: Final = 0.01


def log_service(folders: HostFolders, *, largest: int = LARGEST, rate: int = RATE) -> Service:
    """The writer. A log file holds `largest` bytes, and `rate` bytes a second are read per program."""
    words = (str(folders.log_pipes), str(folders.site_logs), str(largest), str(rate))
    return Service(NAME, (sys.executable, "-I", "-S", str(_PROGRAM), *words))


def log_pipe(folders: HostFolders, account: SiteAccount, kind: str) -> Path:
    """A pipe whose data goes to `site_log`. `kind`: lower case letters."""
    return folders.log_pipes / f"{account.name}.{kind}"


def site_log(folders: HostFolders, account: SiteAccount, kind: str) -> Path:
    return folders.site_logs / account.name / f"{kind}.log"


async def flush_logs(folders: HostFolders, account: SiteAccount, kind: str) -> None:
    """Wait until the program's earlier output is in its log, unless the writer is away."""
    pipe, log = log_pipe(folders, account, kind), site_log(folders, account, kind)
    with trio.move_on_after(_WRITTEN_WITHIN):
        while True:
            if await trio.to_thread.run_sync(_is_written, pipe, log):
                return
            await trio.sleep(_LOOK_AGAIN)


def _is_written(pipe: Path, log: Path) -> bool:
    try:
        held = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # The program has never written anything.
    try:
        waiting = array.array("i", [0])
        fcntl.ioctl(held, termios.FIONREAD, waiting)
        if waiting[0]:
            return False
    finally:
        os.close(held)
    try:
        with log.open("rb") as file:
            # The log's writer holds this lock while data that has left the pipe is being written to the file.
            fcntl.flock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        # The log is about to be created, unless the site is gone.
        return not log.parent.exists()
    return True
