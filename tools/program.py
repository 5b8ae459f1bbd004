"""A program that runs detached from the terminal; a later run finds it by its pid file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import trio


def holding(ports: Sequence[tuple[str, int]], command: list[str]) -> list[str]:
    """The command that runs `command` while the ports, each with its name, are held for it in both families."""
    held = [f"{name}={address}:{port}" for name, port in ports for address in ("0.0.0.0", "[::]")]
    return [sys.executable, str(Path(__file__).with_name("hold.py")), *held, "--", *command]


class Program:
    """One of our programs, running detached from the terminal; its pid and its log are in the data folder."""

    def __init__(self, name: str, data: Path, command: list[str]) -> None:
        self.name = name
        self.command = command
        self.log = data / f"{name}.log"
        self._pid_file = data / f"{name}.pid"

    def pid(self) -> int | None:
        """The pid while the program runs; the command is compared, since the pid may have been reused."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        # A program that is just being loaded has no arguments yet, and neither has one that has ended.
        ours = self.command[1].encode() in command or command == [b""]
        return pid if ours and state not in "ZX" else None

    def start(self) -> None:
        if self.pid() is not None:
            return
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._pid_file.write_text(str(process.pid))

    async def stop(self) -> None:
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        with trio.move_on_after(30):
            while self.pid() is not None:
                reap()
                await trio.sleep(0.1)
        if self.pid() is not None:
            print(f"{self.name} did not stop within 30 s; killing it", file=sys.stderr)
            os.kill(pid, signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return
