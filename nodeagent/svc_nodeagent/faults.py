"""Fault points: named points between two steps at which a test can kill or stop the agent.

`SVC_FAULT_POINT=name` kills the process with SIGKILL at the first pass of that point, `name:3` at the third.
`SVC_FAULT_HOLD=folder` stops the process, until it is sent SIGCONT, at each point for which there is a file in that
folder; the file is removed first. If neither variable is set, a fault point does nothing. The points of the agent are
the calls of `fault_point` in its sources.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_VARIABLE = "SVC_FAULT_POINT"
_HOLD = "SVC_FAULT_HOLD"
_passes: dict[str, int] = {}


def fault_point(name: str) -> None:
    """Kill this process here if the environment names this point: without finalizers and without a flush, as a power
    cut would."""
    if (folder := os.environ.get(_HOLD)) is not None and (held := Path(folder, name)).exists():
        held.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    point, _, nth = wanted.partition(":")
    if point != name:
        return
    _passes[name] = _passes.get(name, 0) + 1
    if _passes[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
