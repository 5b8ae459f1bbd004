"""A test that has not ended within its time fails, and says where each of its Trio tasks waits.

Without this, one test that waits for ever takes the whole run with it, and nothing names the test.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import pytest
import trio

_MOST_SECONDS: Final = 300
_MOST_SYSTEM_SECONDS: Final = 900
"""A system test may be the first of its file, and so the one that installs a server or boots a guest."""

_AGAIN_SECONDS: Final = 60
"""When what is cut waits once more while it tidies up, it is cut again."""


@contextmanager
def cut_when_stuck(item: pytest.Item, told: int) -> Iterator[None]:
    """Fail `item` when its time is over. `told`: the file descriptor that is told where it waits, beside what pytest
    captures, as a test that cannot be cut has no report."""
    seconds = _MOST_SYSTEM_SECONDS if item.get_closest_marker("system") else _MOST_SECONDS

    def cut(_signal: int, frame: FrameType | None) -> None:
        os.write(told, f"\n{item.nodeid} has not ended within {seconds} s\n{_tasks()}".encode())
        faulthandler.dump_traceback(told)
        pytest.fail(f"the test has not ended within {seconds} s")

    before = signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def leave_the_run() -> None:
    """A test that was cut leaves its Trio run in the middle, which stands as long as something refers to its frames:
    what Python keeps for a debugger does. No other run could begin, neither to tidy up nor for the next test."""
    for name in ("last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


def _tasks() -> str:
    """Where each task of the Trio run of this thread waits; empty without one."""
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return ""
    return "" if root is None else "".join(_below(root, ""))


def _below(task: trio.lowlevel.Task, indent: str) -> Iterator[str]:
    yield f"{indent}task {task.name}\n"
    for frame in traceback.StackSummary.extract(task.iter_await_frames()):
        if "/site-packages/" not in frame.filename:
            yield f"{indent}  {frame.filename}:{frame.lineno} {frame.name}: {frame.line}\n"
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child, indent + "    ")
