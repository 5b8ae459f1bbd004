"""The folder of the embedded PostgreSQL: its data, its socket, its log and its lock.

Invariants:
- As root, the folder itself, the log and the lock are root's: the server's account owns `cluster/` and `socket/` alone,
  and can put no link where root opens a file.
- Root opens and writes only regular files of its own with a single name; anything else is refused and left untouched.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from svc_actors.store.reach import Account, grant_traversal, server_account

SOCKET_NAME = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 107
_LOG_LIMIT = 16 * 1024 * 1024


class DatabaseInUseError(RuntimeError):
    """Another running service holds this folder."""


class Folder:
    """The folder of an embedded PostgreSQL: `cluster/` (its data) and `socket/`, owned by the server's account;
    `server.log` and `lock`."""

    def __init__(self, path: Path, socket_folder: Path, account: Account | None) -> None:
        self.path = path
        self.cluster = path / "cluster"
        self.socket = socket_folder
        self.log = path / "server.log"
        self.account = account

    @classmethod
    def prepare(cls, data_dir: Path, programs: Path) -> Folder:
        path = data_dir.absolute()
        path.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        account = server_account()
        _keep(path, account)
        if account is not None:
            grant_traversal(account, path / "cluster")
            grant_traversal(account, programs / "postgres")
        socket_folder = path / "socket"
        if len(os.fsencode(socket_folder / SOCKET_NAME)) > _LONGEST_SOCKET_PATH:
            socket_folder = _short_folder(path)
        create_server_folder(socket_folder, account)
        return cls(path, socket_folder, account)

    def url(self, role: str, database: str) -> str:
        return f"postgresql://{role}@/{database}?host={quote(str(self.socket), safe='')}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        with os.fdopen(_open(self.path / "lock", os.O_RDWR | os.O_CREAT), "r+") as lock:
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
                    # If the socket's folder is outside the data folder, it is removed as well.
                    with suppress(OSError):
                        self.socket.rmdir()

    def write_access_rules(self, cluster: Path, roles: Sequence[str]) -> None:
        """Write the rules for connecting: only our own user and the server's, as identified by the kernel, may connect
        over the socket, each with its roles."""
        own = pwd.getpwuid(os.geteuid()).pw_name
        users = dict.fromkeys([own, self.account.name if self.account else own])
        rules = [f"svc {user} {role}" for user in users for role in roles]
        self._write(cluster / "pg_ident.conf", "\n".join(rules) + "\n")
        self._write(cluster / "pg_hba.conf", "local all all peer map=svc\n")

    def _write(self, path: Path, text: str) -> None:
        """Replace a file of the server by a new one: an existing file or link of that name is never written to."""
        new = path.with_name(path.name + ".new")
        new.unlink(missing_ok=True)
        with os.fdopen(_open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(text)
            if self.account is not None:
                os.fchown(file.fileno(), self.account.uid, self.account.gid)
        new.replace(path)

    def open_log(self) -> int:
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".log.1"))
        return _open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def end_of_log(self) -> str:
        if not self.log.exists():
            return ""
        with os.fdopen(_open(self.log, os.O_RDONLY), errors="replace") as log:
            return "\n".join(log.read().splitlines()[-15:])

    def forget_dead_server(self) -> None:
        """Remove what a killed server left behind. Only while none of its processes lives and we hold the lock."""
        for leftover in (
            self.cluster / "postmaster.pid",
            self.socket / SOCKET_NAME,
            self.socket / f"{SOCKET_NAME}.lock",
        ):
            leftover.unlink(missing_ok=True)

    def is_ready(self) -> bool:
        """Whether the last line of the server's pid file says that it takes connections."""
        lines = self._pid_file()
        return len(lines) >= 8 and lines[7].strip() == "ready"

    def postmaster(self) -> int:
        """The pid of the server that runs, or ran last; 0 if none did."""
        lines = self._pid_file()
        return int(lines[0]) if lines else 0

    def _pid_file(self) -> list[str]:
        try:
            return (self.cluster / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def processes(self) -> list[int]:
        """All processes of servers on this folder: PostgreSQL's processes have the cluster as working directory."""
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    works_here = Path(os.readlink(f"/proc/{entry.name}/cwd")) == self.cluster
                    program = Path(os.readlink(f"/proc/{entry.name}/exe")).name
                except OSError:
                    # The process has ended meanwhile, or belongs to another user.
                    continue
                if works_here and program.removesuffix(" (deleted)") == "postgres":
                    found.append(int(entry.name))
        return found


def create_server_folder(folder: Path, account: Account | None) -> None:
    """Create a folder that the server owns, closed to others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise PermissionError(f"{folder} is a link, where a folder of the database should be.")
    if account is not None:
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    folder.chmod(0o700)


def _keep(folder: Path, account: Account | None) -> None:
    """Make the folder ours. It used to belong to the server's account, which may have left anything in it."""
    status = folder.stat()
    expected = account.uid if account else os.geteuid()
    if status.st_uid not in (expected, os.geteuid()):
        raise PermissionError(f"The database folder {folder} belongs to another user.")
    if account is not None:
        os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o700 if account is None else 0o711)


def _open(path: Path, flags: int) -> int:
    """Open a file of our own that has a single name, or create it; never follow a link."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise PermissionError(f"{path} is a link, where a file of the service should be: look who made it.") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not a file of the service's own: look who made it, and remove it.")
    return descriptor


def _short_folder(path: Path) -> Path:
    """The folder for the socket if the data folder's path is too long for one; always the same for the same path."""
    runtime = Path("/run") if os.geteuid() == 0 else Path(os.environ.get("XDG_RUNTIME_DIR", "/tmp"))  # noqa: S108
    folder = runtime / f"svc-{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink():
        raise PermissionError(f"{folder} is a link, where the folder of the database's socket should be.")
    return folder
