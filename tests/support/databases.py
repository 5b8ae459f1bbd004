"""The sites' database servers in tests: real ones in a folder of their own, asked as their users and as root."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from svc_webhost.databases import DatabaseServer, DatabaseServers, EngineKind
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import ServiceName
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.mariadb import SERVICE as MARIADB
from svc_webhost.mariadb import MariaDb
from svc_webhost.postgres import SERVICE as POSTGRESQL
from svc_webhost.postgres import Postgres
from svc_webhost.programs import Program, run_program
from svc_webhost.site_runtime import prepare_shared_sockets

SERVICES: Mapping[EngineKind, ServiceName] = {EngineKind.MARIADB: MARIADB, EngineKind.POSTGRESQL: POSTGRESQL}
PSQL = "/usr/lib/postgresql/15/bin/psql"


class ProgramEndedError(Exception):
    """Another exit status than 0; with all that it wrote."""


@dataclass
class Ran:
    """A runner of programs as a job is one, which keeps what they wrote."""

    lines: list[str] = field(default_factory=list)

    async def __call__(
        self,
        command: tuple[str, ...],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: Path | None = None,
    ) -> None:
        said: list[str] = []

        async def take(lines: list[str]) -> None:
            said.extend(lines)
            await trio.lowlevel.checkpoint()

        with trio.fail_after(60):
            status = await run_program(Program(tuple(command), environment or {}, stdin=stdin), take)
        self.lines += said
        if status != 0:
            raise ProgramEndedError("\n".join(said))


@dataclass(frozen=True)
class Answer:
    """What a client said. `ok`: every statement was done."""

    ok: bool
    out: str
    err: str


async def ask(
    kind: EngineKind, socket: Path, sql: str, database: str = "", user: str = "", password: str = "", uid: int = 0
) -> Answer:
    """As a user of the engine; by default as root, its administrator. `uid`: whose process it is."""
    if kind is EngineKind.MARIADB:
        command = ["/usr/bin/mariadb", "--no-defaults", f"--socket={socket}", f"--user={user or 'root'}", "--batch"]
        command += ["--skip-column-names", *([f"--database={database}"] if database else [])]
        environment = {"MYSQL_PWD": password}
    else:
        command = [PSQL, "-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-h", str(socket), "-f", "-"]
        command += ["-U", user or "postgres", "-d", database or "postgres"]
        # A customer may have set a limit of a millisecond for her database; it is not the administrator's.
        environment = {"PGPASSWORD": password, "PGOPTIONS": "" if user else "-c statement_timeout=0"}
    process = await trio.run_process(
        command,
        stdin=sql.encode(),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **environment},
        user=uid or None,
        group=uid or None,
        extra_groups=[] if uid else None,
    )
    return Answer(process.returncode == 0, process.stdout.decode().strip(), process.stderr.decode().strip())


@dataclass(frozen=True)
class Engines:
    """Both engines."""

    folder: Path
    launcher: KeeperLauncher
    servers: Mapping[EngineKind, DatabaseServer]

    async def ask(self, kind: EngineKind, sql: str, database: str = "", user: str = "", password: str = "") -> Answer:
        return await ask(kind, self.servers[kind].socket, sql, database, user, password)

    async def pid(self, kind: EngineKind) -> int | None:
        return (await self.launcher.status(SERVICES[kind])).pid


@contextmanager
def engines_of_a_module() -> Iterator[Path]:
    """The folder of engines that the tests of a module share, since each takes seconds to be set up: both are, and they
    run under a keeper. All of it is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="svc-databases-"))
    folder.chmod(0o711)
    try:
        trio.run(_start, folder)
        yield folder
    finally:
        trio.run(_stop, folder)
        shutil.rmtree(folder)


async def _start(folder: Path) -> None:
    await trio.to_thread.run_sync(prepare_shared_sockets, HostFolders(folder))
    async with trio.open_nursery() as nursery:
        for server in engines_in(folder).servers.values():
            nursery.start_soon(server.ensure)


async def _stop(folder: Path) -> None:
    launcher = engines_in(folder).launcher
    with trio.fail_after(60):
        for name in await launcher.names():
            await launcher.stop(name)
        os.kill(await launcher.keeper_pid(), signal.SIGTERM)


def engines_in(folder: Path) -> Engines:
    """As a core finds them that has just started."""
    folders = HostFolders(folder)
    launcher = KeeperLauncher(folders)
    servers: DatabaseServers = {
        EngineKind.MARIADB: MariaDb(folders, launcher),
        EngineKind.POSTGRESQL: Postgres(folders, launcher),
    }
    return Engines(folder, launcher, servers)
