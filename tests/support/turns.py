"""What is one on a machine, and is used by one file of tests at a time: its libvirt, and the accounts of sites.

The lanes of a run take care of that themselves (`tools.testing.dealing`). A run of another clone, or of one file by
hand, knows nothing of them: each takes its turn by a lock of the machine's, from a file's first test to its last.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path

import pytest

from tools.testing.dealing import WITH_ACCOUNTS
from tools.testing.plugin import kind_of
from tools.testing.times import Kind

FOLDER = Path("/run/svc-tests")


@dataclass(frozen=True)
class Turn:
    what: str
    file: str


def turn_of(item: pytest.Item | None) -> Turn | None:
    if item is None or item.get_closest_marker("system") is None:
        return None
    file = item.nodeid.partition("::")[0]
    if file.startswith(WITH_ACCOUNTS):
        return Turn("accounts", file)
    return Turn("libvirt", file) if kind_of(item) == Kind.HOST else None


@dataclass
class Turns:
    """`told`: the descriptor of a file that is told of waiting."""

    told: int
    folder: Path = FOLDER
    _turn: Turn | None = None
    _lock: TextIOWrapper | None = field(default=None, repr=False)

    def take(self, turn: Turn | None) -> None:
        """Waits for it, and gives back what the last one was."""
        if turn == self._turn:
            return
        self.give_back()
        if turn is None:
            return
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Of this process alone, as opposed to flock(2): a process that it forks does not keep it.
        lock = (self.folder / f"{turn.what}.lock").open("w")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits = f"\n{turn.file} waits: another run on this machine uses its {turn.what}\n"
            os.write(self.told, waits.encode())
            fcntl.lockf(lock, fcntl.LOCK_EX)
        self._lock, self._turn = lock, turn

    def give_back(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._lock = self._turn = None

    def until(self, following: Turn | None) -> None:
        """The test is over. Between two files another run may have its turn."""
        if following != self._turn:
            self.give_back()
