"""The accounts of sites: each has a user and group of this server, with a home of its own.

    sites/s1001/          0710  s1001:www-data   the web server may pass through, other accounts may not
        public/           0755  s1001:s1001      the document root
        private/          0700  s1001:s1001      never served to visitors
        tmp/              0700  s1001:s1001
    logs/sites/s1001/     0750  root:root        outside the home, so that the site cannot change its logs

Invariants:
- a user id is a site's number plus `FIRST_UID`; site numbers are never reused, so user ids are not, either;
- creating and removing may be repeated, and continue from wherever they were interrupted;
- links that a site could have placed are never followed: folders are opened one by one, without following links.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVarTuple, Unpack

import trio

from svc_webhost import site_rights
from svc_webhost.folders import HostFolders
from svc_webhost.programs import Program, run_program
from svc_webhost.site_rights import WrongRights
from svc_webhost.tree_removal import remove_tree

Arguments = TypeVarTuple("Arguments")

FIRST_UID: Final = 1_900_000_000
"""Above the ranges of all other ids: subordinate ids (up to SUB_UID_MAX = 600,100,000 in Debian's login.defs), which
another account may use for its containers, and systemd's containers (up to 1,879,048,191). Below systemd's ids of
foreign images (from 2,147,352,576) and 2^31: some programs have ids in signed integers."""
WEB_SERVER_GROUP: Final = "www-data"
_PROGRAM_SECONDS: Final = 60.0
_KILL_SECONDS: Final = 20.0
_SHARED_FOLDERS: Final = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 - any account may write there
_KILLER_UID: Final = FIRST_UID
"""A user id that belongs to no account: the first site has the number 1001."""
_KILL_ALL: Final = (
    "import os, signal, sys; killer, uid = map(int, sys.argv[1:]); "
    "os.setresuid(killer, uid, killer); os.kill(-1, signal.SIGKILL)"
)
"""kill(2) checks the effective user id of the sender, and the real and saved ids of the receiver: so this program may
signal all of the user's processes, and none of these may kill or stop this program first. If two such programs run for
two users, one may kill the other. The killed one is then started again: its caller repeats it until no process is
left."""
NICENESS_OF_WORK: Final = 5
"""For checks and repairs of a site's files in a job, which waits for them. A diagnosis on request runs with a lower
priority."""
NICENESS_OF_A_LOOK: Final = 19
_NICE: Final = "/usr/bin/nice"
_SITE_RIGHTS: Final = (sys.executable, "-I", "-S", site_rights.__file__)
"""Runs outside the site's group, so that a site that has no processor time or memory left can be diagnosed, too."""
_SITE_RIGHTS_SECONDS: Final = 300.0
_SITE_RIGHTS_BYTES: Final = 262_144
"""Limit of its output: more than ten times the usual."""
_AT_ONCE: Final = 8
"""Room for four diagnoses, and for jobs."""
_NO_SUCH_NAME: Final = 6
"""Exit status of userdel and groupdel."""


class AccountError(Exception):
    """An account could not be created or removed; the message has the server's error."""


@dataclass(frozen=True)
class SiteAccount:
    number: int

    @property
    def name(self) -> str:
        return f"s{self.number}"

    @property
    def uid(self) -> int:
        """The account's user id, which is also its group's id."""
        return FIRST_UID + self.number


class Accounts(Protocol):
    """All methods raise `AccountError`, and may be repeated."""

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        """Create the account with its home and folders. `first_page` becomes public/index.html if public/ is empty."""
        ...

    async def wrong_rights(self, account: SiteAccount, niceness: int) -> list[WrongRights]:
        """Owners and modes of the account's home and files that break the site, and a missing user."""
        ...

    async def mend_rights(self, account: SiteAccount) -> None:
        """Repair owners and modes of the account's files; `make` repairs those of its folders."""
        ...

    async def end_processes(self, account: SiteAccount) -> None:
        """End all processes of the account."""
        ...

    async def remove(self, account: SiteAccount) -> None:
        """Remove everything of the account from this server: processes, the files in its home and logs, user and
        group."""
        ...


class SystemAccounts:
    """Accounts in this server's /etc/passwd and /etc/group, by useradd and related programs."""

    def __init__(self, folders: HostFolders) -> None:
        self._folders = folders
        # One program at a time: these programs lock /etc/passwd, and fail while another one holds the lock.
        self._one = trio.Lock()
        self._threads = trio.CapacityLimiter(4)
        self._site_rights = trio.CapacityLimiter(_AT_ONCE)

    async def make(self, account: SiteAccount, first_page: str | None) -> None:
        async with self._one:
            await self._run(_ensure_group, account)
            await self._run(_ensure_user, account, self._folders.sites / account.name)
        await self._run(_make_folders, account, self._folders, first_page)

    async def wrong_rights(self, account: SiteAccount, niceness: int) -> list[WrongRights]:
        with _as_account_error():
            missing, web_server = await trio.to_thread.run_sync(
                lambda: (list(_missing_user(account)), _web_server()), abandon_on_cancel=True, limiter=self._site_rights
            )
        said = await self._rights_of(account, niceness, "look", str(web_server))
        try:
            return [*missing, *(WrongRights(**json.loads(line)) for line in said)]
        except json.JSONDecodeError as error:  # This line is not JSON but a warning of nice(1) or of Python.
            raise AccountError(said[0]) from error

    async def mend_rights(self, account: SiteAccount) -> None:
        await self._rights_of(account, NICENESS_OF_WORK, "mend")

    async def end_processes(self, account: SiteAccount) -> None:
        await self._run(_end_processes, account.uid)

    async def remove(self, account: SiteAccount) -> None:
        await self._run(_end_processes, account.uid)
        await self._run(_remove_files, account, self._folders)
        async with self._one:
            await self._run(_remove_user, account)

    async def _rights_of(self, account: SiteAccount, niceness: int, order: str, *further: str) -> list[str]:
        """The output of `site_rights` about the account's home."""
        said: list[str] = []
        left = _SITE_RIGHTS_BYTES

        async def take(lines: list[str]) -> None:
            nonlocal left
            left -= sum(len(line) + 1 for line in lines)
            if left < 0:
                raise AccountError("the program that reads the files returned more output than it may")
            said.extend(lines)

        home = self._folders.sites / account.name
        command = (_NICE, "-n", str(niceness), *_SITE_RIGHTS, order, str(home), str(account.uid), *further)
        async with self._site_rights:
            with _as_account_error(), trio.move_on_after(_SITE_RIGHTS_SECONDS):
                if status := await run_program(Program(command), take):
                    raise AccountError(said[-1] if said else f"the program that reads the files ended with {status}")
                return said
        raise AccountError(f"it took longer than {_SITE_RIGHTS_SECONDS:g} seconds")

    async def _run(self, work: Callable[[Unpack[Arguments]], None], *args: *Arguments) -> None:
        with _as_account_error():
            await trio.to_thread.run_sync(work, *args, limiter=self._threads)


@contextmanager
def _as_account_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AccountError(str(error)) from error


def _ensure_group(account: SiteAccount) -> None:
    try:
        found = grp.getgrnam(account.name)
    except KeyError:
        _program("groupadd", "--gid", str(account.uid), account.name)
        return
    if found.gr_gid != account.uid:
        raise AccountError(
            f"the group {account.name} exists with the id {found.gr_gid}, and was not created by this panel"
        )


def _ensure_user(account: SiteAccount, home: Path) -> None:
    try:
        found = pwd.getpwnam(account.name)
    except KeyError:
        # A system account has no password expiry and no range of subordinate ids.
        _program(
            *("useradd", "--system", "--uid", str(account.uid), "--gid", account.name, "--no-create-home"),
            *("--home-dir", str(home), "--shell", "/usr/sbin/nologin", "--no-log-init", account.name),
        )
        return
    if found.pw_uid != account.uid:
        raise AccountError(
            f"the user {account.name} exists with the id {found.pw_uid}, and was not created by this panel"
        )


def _missing_user(account: SiteAccount) -> Iterator[WrongRights]:
    try:
        pwd.getpwnam(account.name)
    except KeyError:
        yield WrongRights(f"This server has no user {account.name}.")


def _web_server() -> int:
    """The id of the web server's group."""
    return grp.getgrnam(WEB_SERVER_GROUP).gr_gid


def _remove_user(account: SiteAccount) -> None:
    """Remove the user. userdel also removes the group if it has no other members."""
    _program("userdel", account.name, accepted=(0, _NO_SUCH_NAME))
    _program("groupdel", account.name, accepted=(0, _NO_SUCH_NAME))


def _program(*command: str, accepted: tuple[int, ...] = (0,)) -> None:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AccountError(f"{command[0]} did not end within {_PROGRAM_SECONDS:g} seconds") from None
    if ended.returncode not in accepted:
        said = (ended.stderr or ended.stdout).strip() or f"exit status {ended.returncode}"
        raise AccountError(f"{command[0]}: {said}")


def _make_folders(account: SiteAccount, folders: HostFolders, first_page: str | None) -> None:
    web_server = _web_server()
    for parent in (folders.sites, folders.site_logs):
        parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    logs = folders.site_logs / account.name
    logs.mkdir(mode=0o750, exist_ok=True)
    with _folder(None, folders.sites) as sites, _own(sites, account.name, 0o710, account.uid, web_server) as home:
        for name, mode in (("private", 0o700), ("tmp", 0o700)):
            with _own(home, name, mode, account.uid, account.uid):
                pass
        with _own(home, "public", 0o755, account.uid, account.uid) as public:
            if first_page is not None and not os.listdir(public):
                _write(public, "index.html", first_page.encode(), account.uid)


@contextmanager
def _folder(parent: int | None, path: str | Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _own(parent: int, name: str, mode: int, uid: int, gid: int) -> Iterator[int]:
    """Open the folder of that name, created if needed, with these owners and mode."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise AccountError(f"{name} is not a folder") from None
    with _folder(parent, name) as descriptor:
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, mode)
        yield descriptor


def _write(folder: int, name: str, content: bytes, uid: int) -> None:
    """A new file, which gets its name once it is complete."""
    descriptor = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, 0o644)
        os.fchown(descriptor, uid, uid)
        os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)


def _remove_files(account: SiteAccount, folders: HostFolders) -> None:
    """Remove the account's files. No process of the account is left that could add files meanwhile."""
    for folder in (folders.sites / account.name, folders.site_logs / account.name):
        remove_tree(folder)
    for pipe in folders.log_pipes.glob(f"{account.name}.*"):
        pipe.unlink(missing_ok=True)
    for shared in _SHARED_FOLDERS:
        for entry in os.scandir(shared):
            try:
                owner = entry.stat(follow_symlinks=False).st_uid
            except FileNotFoundError:
                # A file of another account that was removed meanwhile.
                continue
            if owner != account.uid:
                continue
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                Path(entry.path).unlink(missing_ok=True)


def _end_processes(uid: int) -> None:
    """The user's processes are killed by a process of the same user: with one call, the kernel kills everything that
    the user may signal, in one pass that no fork escapes. Processes that start during a pass are killed in the next
    one. Raises `AccountError`."""
    deadline = time.monotonic() + _KILL_SECONDS
    while found := list(_processes_of(uid)):
        if time.monotonic() > deadline:
            raise AccountError(f"{len(found)} processes of the user {uid} do not end, {found[0]} among them")
        try:
            subprocess.run(
                (sys.executable, "-I", "-S", "-c", _KILL_ALL, str(_KILLER_UID), str(uid)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROGRAM_SECONDS,
                check=False,
            )
        except subprocess.SubprocessError as error:
            raise AccountError(f"the processes of the user {uid} were not ended: {error}") from error
        for pid in found:
            _kill(pid, uid)
        time.sleep(0.01)


def _kill(pid: int, uid: int) -> None:
    """Kill the process as root. If another account runs a set-uid program of the user's, that process can give up every
    id of the user except the effective one, and then the user may not signal it."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            # If the pid was given to another process, the signal through the descriptor reaches nobody, since its
            # process has ended.
            if _runs_as(pid, uid):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _processes_of(uid: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _runs_as(int(entry), uid):
            yield int(entry)


def _runs_as(pid: int, uid: int) -> bool:
    """Whether any of the process's user ids (real, effective, saved, of the file system) is `uid`. An ended process
    that waits for its parent does not count."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return fields["State"][0] not in "ZX" and str(uid) in fields["Uid"]
