"""Run one part of the tests: attempts.py NAME PYTEST-ARGUMENTS.

What fails in up to six files gets one more attempt when the part is over: a machine that stood still for a moment
fails nobody's change, and what fails twice is a defect. What passed only then is named at the end, to be mended.

Daemons and guests that the tests start become this process's children, and are reaped as they end, as under systemd.
In a container process 1 may come round to that seconds later, and libvirt waits for it at every end of a QEMU.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 6
"""Files rather than tests: those of one file often share a server, which one that fails half way may leave broken."""


_PR_SET_CHILD_SUBREAPER: Final = 36


def main(name: str, *arguments: str) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cache = Path("build/tests") / name
    shutil.rmtree(cache, ignore_errors=True)
    status = _pytest(cache, *arguments)
    if status != 1:
        return status
    failed = sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    if len({test.partition("::")[0] for test in failed}) > _MOST_FILES:
        return status
    print("Second attempt:", *failed, sep="\n  ", flush=True)
    status = _pytest(cache, *failed)
    if status == 0:
        print("FLAKY, to be mended:", *failed, sep="\n  ", flush=True)
    return status


def _pytest(cache: Path, *arguments: str) -> int:
    """Its exit status: 1 when tests failed, more when it could not run them."""
    process = subprocess.Popen((sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments))
    ended = None
    try:
        while ended != process.pid:
            ended, status = os.waitpid(-1, 0)
        return os.waitstatus_to_exitcode(status)
    finally:
        if ended != process.pid:
            process.terminate()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
