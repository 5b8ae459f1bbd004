"""Where a launcher can be tried: this host with a keeper of its own, or a Debian whose first process is systemd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, ListeningSocket, Service, ServiceName
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.launcher_systemd import SystemdLauncher
from tests.support.systemd_root import SystemdRoot

PYTHON = "/usr/bin/python3"

# What a service does in the tests, by its first argument. It answers everybody whom it accepted before it ends.
_PROGRAM = """
import os, select, signal, socket, sys, time

def serve(greeting):
    stopping = []
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    listening = socket.socket(fileno=int(os.environ["LISTENING"]))
    while not stopping:
        ready, _, _ = select.select([listening, woken], [], [])
        if listening in ready:
            connection, _ = listening.accept()
            connection.sendall(f"{greeting} {os.getpid()}".encode())
            connection.close()

def leave(path):
    # A child that is nobody's child any more, has a session of its own, and does not end when it is asked to.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(path, "w") as file:
                file.write(str(os.getpid()))
            time.sleep(3600)
        os._exit(0)
    time.sleep(3600)

def multiply(path):
    begun = 0
    try:
        while begun < 200:
            if os.fork() == 0:
                time.sleep(3600)
            begun += 1
    except OSError:
        pass
    with open(path, "w") as file:
        file.write(str(begun))
    time.sleep(3600)

def grow(mebibytes):
    # Touched page by page: what is only promised is not counted.
    kept = [bytearray(b"x" * (1 << 20)) for _ in range(int(mebibytes))]
    time.sleep(3600)

def regrow(mebibytes):
    # As a pool of PHP: the first process stays, and starts another for each that is killed.
    while True:
        if os.fork() == 0:
            grow(mebibytes)
        os.wait()

def end(status):
    sys.exit(int(status))

globals()[sys.argv[1]](*sys.argv[2:])
"""


@dataclass
class Place:
    """`folder` is where its services keep their things, as they see it; `root` is its file system as we see it."""

    launcher: KeeperLauncher | SystemdLauncher
    folder: Path
    root: Path
    enter: tuple[str, ...] = ()
    """The beginning of a command that runs there."""

    @property
    def keeper(self) -> KeeperLauncher:
        assert isinstance(self.launcher, KeeperLauncher)
        return self.launcher

    def seen(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def proc(self, pid: int | None) -> Path:
        assert pid is not None, "it runs"
        return self.root / "proc" / str(pid)

    def prepare(self) -> None:
        self.seen(self.folder).chmod(0o755)
        self.seen(self.folder / "program.py").write_text(_PROGRAM)
        self.seen(self.folder / "sockets").mkdir()
        (self.seen(self.folder / "writable")).mkdir()
        (self.seen(self.folder / "writable")).chmod(0o777)

    def service(
        self,
        name: str,
        *words: str,
        user: str = "www-data",
        environment: dict[str, str] | None = None,
        listens: bool = False,
        limits: Limits | None = None,
        stop_seconds: float = 10.0,
    ) -> Service:
        listening = ListeningSocket(self.socket(name), 0o660, user, "www-data", "LISTENING")
        return Service(
            ServiceName(name),
            (PYTHON, str(self.folder / "program.py"), *words),
            user=user,
            group=user,
            environment=environment or {},
            sockets=(listening,) if listens else (),
            limits=limits or Limits(),
            log=self.folder / f"{name}.log",
            stop_seconds=stop_seconds,
        )

    def socket(self, name: str) -> Path:
        return self.folder / "sockets" / f"{name}.sock"

    async def greeting(self, name: str) -> str:
        """What the service answers; the errors of a connection that is refused, reset or not answered."""
        with trio.fail_after(30):
            async with await trio.open_unix_socket(str(self.seen(self.socket(name)))) as stream:
                received = b""
                async for chunk in stream:
                    received += chunk
        if not received:
            raise ConnectionError("nothing was answered")
        return received.decode()

    async def greetings_at(self, port: int, connections: int) -> list[str]:
        """What the service answers who connects to its port, one after another."""
        client = (
            "import socket, sys\n"
            f"for _ in range({connections}):\n"
            f"    with socket.create_connection(('127.0.0.1', {port}), timeout=30) as connection:\n"
            "        print(connection.makefile().read())\n"
        )
        told = await trio.run_process([*self.enter, PYTHON, "-c", client], capture_stdout=True)
        return told.stdout.decode().splitlines()

    def kill(self, pid: int) -> None:
        subprocess.run([*self.enter, "sh", "-c", f"kill -KILL {pid}"], check=True)

    def alive(self, pid: int) -> bool:
        try:
            state = (self.proc(pid) / "stat").read_text().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state != "Z"


async def until(holds: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    with trio.fail_after(within):
        while not await holds():
            await trio.sleep(0.05)


async def written(path: Path, word: str = "") -> str:
    """What the file says as soon as it says anything with `word` in it."""

    async def there() -> bool:
        return path.exists() and path.read_text() != "" and word in path.read_text()

    await until(there)
    return path.read_text()


@asynccontextmanager
async def keeper_place() -> AsyncIterator[Place]:
    """This host, a keeper with a data folder of its own. All of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="svc-keeper-"))
    launcher = KeeperLauncher(HostFolders(folder))
    place = Place(launcher, folder, Path("/"))
    place.prepare()
    try:
        yield place
    finally:
        with trio.CancelScope(shield=True, relative_deadline=60):
            for name in await launcher.names():
                await launcher.stop(name)
            os.kill(await launcher.keeper_pid(), signal.SIGTERM)
        shutil.rmtree(folder)


@asynccontextmanager
async def systemd_place(host: SystemdRoot) -> AsyncIterator[Place]:
    """A folder in it; no service is left afterwards."""
    root = Path(f"/proc/{host.init}/root")
    folder = Path("/srv") / uuid4().hex[:8]
    (root / folder.relative_to("/")).mkdir()
    place = Place(SystemdLauncher(root=root, enter=host.enter), folder, root, host.enter)
    place.prepare()
    try:
        yield place
    finally:
        with trio.CancelScope(shield=True, relative_deadline=60):
            for name in await place.launcher.names():
                await place.launcher.stop(name)
