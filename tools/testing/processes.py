"""The programs that a run starts, and every process that those leave behind.

Daemons and guests that the tests start become this process's children, and are reaped as they end, as under systemd. In
a container process 1 may only do that seconds later, and libvirt waits for it at every end of a QEMU. So whatever a run
has started is below this process, in whatever session or group, and can be ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from tools.testing.files import ROOT

_PR_SET_CHILD_SUBREAPER: Final = 36
_TIDY_SECONDS: Final = 60.0
"""How long interrupted tests may take to end what they have started."""
_CUTTING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


@dataclass
class Processes:
    cut_by: signal.Signals | None = None
    """The signal that ended the run, if one did."""
    _wakeup: int = -1
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _signals: int = 0

    def start(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path | None = None) -> int:
        """Returns its process id. It gets a session of its own, so that a Ctrl-C at the terminal reaches it through
        this process alone; its output goes to `log`, or to this process's own output."""
        with contextlib.ExitStack() as opened:
            output = opened.enter_context(log.open("ab")) if log else None
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if log else None,
                start_new_session=True,
            )
        self._running[process.pid] = process
        return process.pid

    def ended(self, seconds: float) -> dict[int, int]:
        """The exit status of each started program that has ended; waits up to `seconds` for something to happen."""
        found = self._reap()
        if not found and seconds > 0:
            select.select([self._wakeup], [], [], seconds)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
            found = self._reap()
        return found

    def stop(self) -> list[str]:
        """End everything: first as Ctrl-C would, so that tests tidy up, then whatever is left. Returns the commands of
        those that had to be killed."""
        signals = self._signals
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGINT)
        until = time.monotonic() + _TIDY_SECONDS
        # A user who interrupts twice does not want to wait for any cleanup.
        while self._running and time.monotonic() < until and self._signals == signals:
            self.ended(0.5)
        killed: list[str] = []
        while left := list(descendants(os.getpid())):
            for pid in left:
                killed.append(command_of(pid))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # Leaves no zombie for process 1 either. A process forked meanwhile is found in the next round.
            self._reap()
            time.sleep(0.02)
        return sorted(set(filter(None, killed)))

    def _reap(self) -> dict[int, int]:
        found: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if process := self._running.pop(pid, None):
                # Recorded, or Popen would wait for a child that is gone.
                process.returncode = found[pid] = os.waitstatus_to_exitcode(status)

    def _cut(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self.cut_by = self.cut_by or signal.Signals(number)


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    """If the block ends with an error, no process is left."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    own = Processes(_wakeup=read)
    before = {number: signal.signal(number, own._cut) for number in _CUTTING}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield own
    except BaseException:
        own.stop()
        raise
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def descendants(ancestor: int) -> Iterator[int]:
    """Every process below one, children first; including ended ones that were not waited for."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # pid (name) state parent: the name may contain any character
            state, parent = (folder / "stat").read_text().rpartition(") ")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "X":
            children.setdefault(int(parent), []).append(int(folder.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
        if pid != ancestor:
            yield pid


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except (FileNotFoundError, ProcessLookupError):
        return ""
