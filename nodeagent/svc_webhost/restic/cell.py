"""Runs one program that reads a site's tree as root: `python -I -S cell.py HOME MOUNTED PROGRAM ARGUMENT...`

The site's own programs may change the tree meanwhile, to make root follow a link out of it. So HOME is mounted at
MOUNTED for this program alone, read-only and with `nosymfollow` (mount(2)): no path below it leads elsewhere, even if a
folder is swapped for a link. Of root's capabilities only CAP_DAC_READ_SEARCH is left, since sites hide their files from
each other. Root's own files stay writable, repositories included. This module is standalone, and uses the standard
library only.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOSYMFOLLOW, MS_BIND, MS_REC, MS_PRIVATE = 32, 256, 4096, 16384, 1 << 18
ST_NOSYMFOLLOW = 0x2000
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CAP_DAC_READ_SEARCH = 2
LAST_CAPABILITY = 63
CANNOT_RUN = 127


def main() -> None:
    home, mounted, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _checked(libc.unshare(CLONE_NEWNS))
        _mount(libc, None, "/", MS_REC | MS_PRIVATE)
        _mount(libc, home, mounted, MS_BIND)
        held = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOSYMFOLLOW
        _mount(libc, None, mounted, MS_BIND | MS_REMOUNT | held)
        if not os.statvfs(mounted).f_flag & ST_NOSYMFOLLOW:
            raise OSError(0, "this kernel cannot mount without following links (Linux 5.10 can)")
        # A program executed by root gets all capabilities of the bounding set, so all others are dropped from it.
        for capability in range(LAST_CAPABILITY + 1):
            if capability != CAP_DAC_READ_SEARCH:
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        os.execvp(command[0], command)  # noqa: S606 - an argument list, and no shell is what is wanted
    except OSError as error:
        os.write(2, f"the site's files cannot be read safely: {error.strerror}\n".encode())
        os._exit(CANNOT_RUN)


def _mount(libc: ctypes.CDLL, source: str | None, target: str, flags: int) -> None:
    given = os.fsencode(source) if source is not None else None
    _checked(libc.mount(given, os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
