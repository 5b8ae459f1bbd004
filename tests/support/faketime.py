"""A wall clock that can be set, for the whole service: controller, nodes and PostgreSQL, by libfaketime.

Only the wall clock jumps; the monotonic clock goes on, as it does when an operator or NTP sets the time.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.reach import grant_traversal, server_account

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@dataclass(frozen=True)
class Clock:
    file: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            # Whoever asks for the time reads the file: with a cache two processes may disagree for two seconds.
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, seconds: int) -> None:
        """Let the clock be this far from the true time, for every process at once."""
        new = self.file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.chmod(0o644)
        new.rename(self.file)


@asynccontextmanager
async def clock_and_postgresql() -> AsyncIterator[tuple[Clock, str]]:
    """A clock, and the URL of a PostgreSQL server that goes by it."""
    assert LIBRARY.exists(), "the Debian package faketime is not installed"
    account = server_account()
    with tempfile.TemporaryDirectory(prefix="svc-clock-", dir="/var/lib") as name:
        folder = Path(name)
        folder.chmod(0o755)
        clock = Clock(folder / "clock")
        clock.file.write_text("+0\n")
        clock.file.chmod(0o644)
        cluster = folder / "cluster"
        cluster.mkdir()
        user = account.name if account else None
        if account is not None:
            os.chown(cluster, account.uid, account.gid)
            grant_traversal(account, PROGRAMS / "postgres")
        options = ["-D", str(cluster), "-U", "svc", "--auth=trust", "--encoding=UTF8", "--no-instructions"]
        await trio.run_process([str(PROGRAMS / "initdb"), *options], user=user, cwd="/", capture_stdout=True)
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={cluster}", "-c", "fsync=off"]
        server = subprocess.Popen(
            [str(PROGRAMS / "postgres"), "-D", str(cluster), *settings],
            user=user,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"} | clock.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with trio.fail_after(30):
                while not (cluster / ".s.PGSQL.5432").exists():
                    await trio.sleep(0.05)
            yield clock, f"postgresql://svc@/postgres?host={cluster}"
        finally:
            server.terminate()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
                await trio.to_thread.run_sync(server.wait)
