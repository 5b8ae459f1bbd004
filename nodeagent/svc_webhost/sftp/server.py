"""Manages the SFTP server: makes it accept exactly the given logins.

Everything may be repeated after any failure. The server always runs, so that its port stays the panel's even without
logins: connections are then closed. One process manages it; callers must not call `agree` concurrently.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from svc_common.listening import everywhere
from svc_common.public_keys import key_fingerprint
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, Limits, ListeningPort, Service, ServiceName, SiteLauncher
from svc_webhost.sftp import accept, enter
from svc_webhost.sftp.configuration import HOST_KEY_TYPES, SftpSettings, account_files, sshd_configuration
from svc_webhost.sftp.model import AccessKind, HostKey, SftpError, SftpLogin
from svc_webhost.sftp.shell.services import Shells

SERVICE: Final = ServiceName("sftp")
PROGRAM: Final = "/usr/sbin/sshd"
START_SECONDS: Final = 15.0
MOST_CONNECTIONS: Final = 10
"""The most concurrent connections of a login. sshd itself limits only connections before they sign in, and the sessions
of one connection."""
CEILING: Final = Limits(memory_mib=2048, processes=1000)
"""The limits of sshd with all its connections, which have two processes each and one more per session. So no login can
use up the server's memory between two checks of its number of connections."""
_PROGRAM_SECONDS: Final = 30.0
_LOOK: Final = 0.05
_LARGEST_LOG: Final = 16 * 1024 * 1024
_SESSION: Final = re.compile(rb"sshd: (s\d+-[a-z0-9-]+)(?=[ @])")
"""The titles of a session's processes: `sshd: s1001-ada [priv]`, `sshd: s1001-ada@internal-sftp`."""

_CONNECTION: Final = re.compile(rb"sshd: (s\d+-[a-z0-9-]+) \[priv\]")
"""The title of the one process of a connection that runs as root, in the server's view."""


class SftpServer:
    """An sshd in a folder of its own."""

    def __init__(self, folders: HostFolders, settings: SftpSettings, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._folder = folders.sftp
        self._settings = settings
        self._launcher = launcher
        self._shells = Shells(folders, launcher)

    @property
    def log(self) -> Path:
        return self._folder / "sshd.log"

    def service(self) -> Service:
        """The service with these settings; a change of the settings restarts it. The launcher holds the port
        (`accept`)."""
        configuration = sshd_configuration(self._settings, self._folder)
        python = (sys.executable, "-I", "-S")
        sshd = (PROGRAM, "-i", "-e", "-f", str(self._folder / "sshd_config"))
        accepting = (*python, str(accept.__file__), *sshd)
        port = self._settings.port
        return Service(
            name=SERVICE,
            command=(*python, str(enter.__file__), "serve", str(self._folder), *accepting),
            ports=tuple(ListeningPort(address, port, "SVC_PORTS", "{descriptor};") for address in everywhere()),
            nonblocking=True,
            environment={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "SVC_CONFIGURATION": hashlib.sha256(configuration.encode()).hexdigest()[:16],
            },
            log=self.log,
            limits=CEILING,
        )

    async def hold(self) -> None:
        try:
            if not (self._folder / "logins.json").exists():
                await trio.to_thread.run_sync(self._prepare, ())
            await self._launcher.ensure(self.service())
        except (LauncherError, OSError, subprocess.SubprocessError) as error:
            raise SftpError(f"Port {self._settings.port} of the SFTP server cannot be bound: {error}") from error

    async def agree(self, logins: Collection[SftpLogin], ended: Collection[str] = ()) -> None:
        try:
            await trio.to_thread.run_sync(self._prepare, tuple(logins))
            await self._launcher.ensure(self.service())
            pid = await self._view()
            ran = await trio.run_process(
                [sys.executable, "-I", "-S", str(enter.__file__), "agree", str(self._folder), str(pid)],
                capture_stderr=True,
                check=False,
            )
            if ran.returncode != 0:
                raise SftpError(ran.stderr.decode(errors="replace").strip())
            stay = {login.name for login in logins}.difference(ended)
            await trio.to_thread.run_sync(_end_sessions, self._folder / "etc", frozenset(stay))
            await trio.to_thread.run_sync(_end_surplus, self._folder / "etc")
            # Revoked logins can no longer sign in from here on, so the shells that they have started are ended as well.
            await self._shells.agree(logins, ended)
        except (LauncherError, OSError, subprocess.SubprocessError) as error:
            raise SftpError(f"The SFTP server cannot be notified: {error}") from error

    async def host_keys(self) -> list[HostKey]:
        try:
            await trio.to_thread.run_sync(self._make_host_keys)
            return await trio.to_thread.run_sync(self._read_host_keys)
        except (OSError, subprocess.SubprocessError) as error:
            raise SftpError(f"The keys of the SFTP server cannot be read: {error}") from error

    async def _view(self) -> int:
        """The pid of the server, once it has entered its own view. Raises `SftpError` if it does not start."""
        with trio.move_on_after(START_SECONDS):
            while True:
                status = await self._launcher.status(SERVICE)
                if status.pid is not None and _accepts(status.pid):
                    return status.pid
                await trio.sleep(_LOOK)
        raise SftpError(f"The SFTP server does not start: {await trio.to_thread.run_sync(self._last_words)}")

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "it says nothing"
        return "it says nothing"

    def _prepare(self, logins: tuple[SftpLogin, ...]) -> None:
        etc = self._folder / "etc"
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        for folder in (etc, etc / "keys"):
            folder.mkdir(mode=0o755, exist_ok=True)
        self._make_host_keys()
        self._shells.prepare(self._folder / "shells")
        _write(self._folder / "sshd_config", sshd_configuration(self._settings, self._folder), 0o600)
        shown = {
            login.name: {
                "home": str(self._folders.sites / login.account.name),
                "uid": login.account.uid,
                "folder": login.folder,
            }
            for login in logins
            if login.kind is AccessKind.SFTP
        }
        _write(self._folder / "logins.json", json.dumps(shown), 0o600)
        # Keys and passwords are written before the accounts that they open: so no account ever exists without them.
        for name, text in sorted(account_files(logins, _sshd_uid()).items(), key=lambda each: each[0] == "passwd"):
            _write(etc / name, text, 0o600 if name == "shadow" else 0o644)
        names = {login.name for login in logins}
        for left in (etc / "keys").iterdir():
            if left.name not in names:
                left.unlink()
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > _LARGEST_LOG:
                # Truncating is safe: the writer always appends at the end of the file.
                os.truncate(self.log, 0)

    def _make_host_keys(self) -> None:
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        for kind in HOST_KEY_TYPES:
            key, new = self._folder / f"host_{kind}_key", self._folder / "new_host_key"
            if key.exists() and key.with_suffix(".pub").exists():
                continue
            for half in (new, new.with_suffix(".pub")):
                half.unlink(missing_ok=True)
            subprocess.run(
                ("/usr/bin/ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(new)),
                check=True,
                capture_output=True,
                timeout=_PROGRAM_SECONDS,
            )
            new.with_suffix(".pub").rename(key.with_suffix(".pub"))
            new.rename(key)

    def _read_host_keys(self) -> list[HostKey]:
        found = []
        for kind in HOST_KEY_TYPES:
            type_, _, rest = (self._folder / f"host_{kind}_key.pub").read_text().strip().partition(" ")
            found.append(HostKey(type_, key_fingerprint(rest.split()[0]), f"{type_} {rest.split()[0]}"))
        return found


def _sshd_uid() -> int:
    """Debian's package creates the account; sshd uses it before a login has signed in."""
    try:
        return pwd.getpwnam("sshd").pw_uid
    except KeyError:
        raise SftpError("There is no account sshd on this server.") from None


def _write(path: Path, text: str, mode: int) -> None:
    """Replace the file atomically: readers see the old or the new content."""
    if path.exists() and path.read_text() == text:
        return
    new = path.with_name(f".{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with open(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    new.rename(path)


def _accepts(pid: int) -> bool:
    """Whether it runs sshd already: the same process first takes on its view (`enter`)."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[3:4] == [os.fsencode(accept.__file__)]


def _end_sessions(etc: Path, stay: frozenset[str]) -> None:
    """Includes sessions of a stopped or killed server, which may outlive it. A login whose password was accepted a
    moment ago is found as well: sshd puts the login into the title of its process as soon as it knows it."""
    for pid in _sessions(etc, stay):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _sessions(etc: Path, stay: frozenset[str]) -> list[int]:
    """The pids of sessions of logins that are not in `stay`. Any program may use such a title, so a process counts only
    in this server's view, in which `etc` is /etc. A session has two processes: one is confined to a folder and does not
    see /etc, the other one does."""
    titled: list[tuple[int, str]] = []
    views: set[str] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            session = _SESSION.match(Path(f"/proc/{entry}/cmdline").read_bytes())
            if not session:
                continue
            view = os.readlink(f"/proc/{entry}/ns/mnt")
            if session[1].decode() not in stay:
                titled.append((int(entry), view))
            if os.path.samefile(f"/proc/{entry}/root/etc", etc):
                views.add(view)
    return [pid for pid, view in titled if view in views]


def connections(etc: Path) -> dict[str, list[int]]:
    """The connections of each login, by the pid of sshd that holds one; the oldest first."""
    found: list[tuple[int, int, str]] = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            connection = _CONNECTION.match(Path(f"/proc/{entry}/cmdline").read_bytes())
            if connection and os.path.samefile(f"/proc/{entry}/root/etc", etc):
                # starttime is the 22nd field, see proc(5); the second field is in brackets and may contain any
                # character.
                began = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()[19]
                found.append((int(began), int(entry), connection[1].decode()))
    by_login: dict[str, list[int]] = {}
    for _, pid, login in sorted(found):
        by_login.setdefault(login, []).append(pid)
    return by_login


def _end_surplus(etc: Path) -> None:
    """End the newest connections of a login that has too many."""
    for pids in connections(etc).values():
        for pid in pids[MOST_CONNECTIONS:]:
            with suppress(OSError):
                # sshd has two processes for a session. Both are killed: the half with the connection would otherwise
                # stay.
                halves = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
                for half in (*halves, pid):
                    os.kill(half, signal.SIGKILL)
