"""End servers of disks that have outlived the agent which started them.

qemu-nbd holds the lock of the disk that it serves, so a machine whose backup was cut short by the agent's death could
not be started. systemd ends qemu-nbd together with the agent; without systemd the next agent ends it, before it takes
orders. A data folder has one agent at a time, so a server of one of the folder's disks has no owner by then. The same
holds for a QEMU that shows a copy's files. That QEMU ends by itself when its agent has ended, unless files that it has
read were made to take it over.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Final

import structlog

_PROCESSES: Final = Path("/proc")
FILES_PORT: Final = "name=svc.copy-files"
"""An argument of every QEMU that shows a copy's files, and of no other."""
_SOCKETS: Final = "--socket=/run/svc-backup-"
_END_MILLISECONDS: Final = 10_000
log = structlog.get_logger(__name__)


def end_orphans(disks: Path) -> None:
    """End every qemu-nbd that a backup or a restoration has started for a disk below `disks`, and every QEMU that shows
    a copy's files with a system below it; wait for their end."""
    for folder in _PROCESSES.glob("[0-9]*"):
        pid = int(folder.name)
        if (disk := _served_by(pid, disks)) is not None:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                # Read again, because the process id may have been given to another process before the handle was
                # opened. This time the id belongs to the handle's process, and a signal sent through the handle reaches
                # no other.
                if _served_by(pid, disks) == disk:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    ended = select.poll()
                    ended.register(handle, select.POLLIN)
                    gone = bool(ended.poll(_END_MILLISECONDS))
                    log.warning("backup.orphan_ended", pid=pid, disk=str(disk), ended=gone)
            except ProcessLookupError:
                pass
            finally:
                os.close(handle)


def _served_by(pid: int, disks: Path) -> Path | None:
    """The disk that this process serves for a backup or a restoration, or the kernel that this process has booted to
    show a copy's files; None for any other process."""
    try:
        arguments = (_PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return None
    match Path(arguments[0]).name if arguments else "":
        case "qemu-nbd" if any(argument.startswith(_SOCKETS) for argument in arguments):
            file = Path(arguments[-1])
        case "qemu-system-x86_64" if "-kernel" in arguments and any(each.endswith(FILES_PORT) for each in arguments):
            file = Path(arguments[arguments.index("-kernel") + 1])
        case _:
            return None
    return file if file.is_relative_to(disks) else None
