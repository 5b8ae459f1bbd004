"""Fault points: names for the instants between two steps at which a test may kill the controller.

`SVC_FAULT_POINT=name` kills the process with SIGKILL at the first pass of that point, `name:3` at the third. Unset, a
fault point does nothing. The points of the controller are the calls of `fault_point` in its sources.
"""

from __future__ import annotations

import os
import signal
from typing import Final

_WANTED, _, _NTH = os.environ.get("SVC_FAULT_POINT", "").partition(":")
_passes: Final[list[str]] = []


def fault_point(name: str) -> None:
    """Kill this process here if the environment names this point; no finalizer, no flush, as a power cut would."""
    if name != _WANTED:
        return
    _passes.append(name)
    if len(_passes) == int(_NTH or 1):
        os.kill(os.getpid(), signal.SIGKILL)
