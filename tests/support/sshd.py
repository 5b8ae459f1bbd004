"""An OpenSSH server of a test's own, which gives SFTP to the keys that it is told of."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.support.stack import free_port

_CONFIGURATION = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
AcceptEnv GIT_PROTOCOL
Subsystem sftp internal-sftp
"""


@dataclass
class Sshd:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def let_in(self, public_key: str) -> None:
        (self.folder / "authorized_keys").write_text(public_key + "\n")

    async def new_key(self) -> str:
        """A private key that is let in, and no other."""
        await trio.run_process(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "user")])
        self.let_in((self.folder / "user.pub").read_text())
        return (self.folder / "user").read_text()

    async def new_host_key(self) -> None:
        """In the place of the one that there is, from the next start on."""
        for file in self.folder.glob("host_key*"):
            file.unlink()
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key")]
        await trio.run_process(keygen)

    async def start(self) -> None:
        command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(self.folder / "config")]
        with (self.folder / "log").open("ab") as log:
            self.process = await trio.to_thread.run_sync(
                lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            )
        with trio.fail_after(30):
            while True:
                with suppress(OSError):
                    await (await trio.open_tcp_stream("127.0.0.1", self.port)).aclose()
                    return
                await trio.sleep(0.02)  # It starts outside of this process.

    def kill(self) -> None:
        """With every session that it has."""
        assert self.process is not None
        left = [self.process.pid]
        while left:
            pid = left.pop()
            left += _children(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self.process = None


@asynccontextmanager
async def open_sshd(folder: Path) -> AsyncIterator[Sshd]:
    """One that is not started yet. `folder` is new."""
    folder.mkdir()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd = Sshd(folder, free_port())
    (folder / "config").write_text(_CONFIGURATION.format(folder=folder, port=sshd.port))
    await sshd.new_host_key()
    try:
        yield sshd
    finally:
        if sshd.process is not None:
            sshd.kill()


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found
