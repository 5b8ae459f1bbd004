"""The SFTP server's view of the machine: an /etc of its own, and the folders of the logins.

    python -I -S enter.py serve FOLDER PROGRAM ARGUMENT...   take on the view, then execute the program
    python -I -S enter.py agree FOLDER PID                   update the logins in the view of that process

Run as root. FOLDER holds `etc/`, `shells/`, and `logins.json`: for each login the home of its site, its user id, and
the folder below the home that it sees. In the view, root owns /run/sftp/LOGIN, as sshd requires of a chroot, and
/run/sftp/LOGIN/site is that folder. Logins with a shell are confined to /run/shells, which is `shells/`: the machine's
/usr, and the sockets of the services that run their shells. The mounts exist in the view alone, and go with the server.

Invariant: no link is followed on the way to a mounted folder. The site's account can place links, and root mounts.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any, Final

_libc: Final = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS: Final = 0x0002_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1 << 1, 1 << 2, 1 << 3, 1 << 5
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH: Final = 2
_ROOTS: Final = "/run/sftp"
_SHELLS: Final = "/run/shells"
_MS_RDONLY: Final = 1
_SITE: Final = "site"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FAILED: Final = 126


def main(arguments: list[str]) -> int:
    order, folder, *rest = arguments
    try:
        if order == "serve":
            _take_on(folder)
            _agree(folder)
            os.execv(rest[0], rest)  # noqa: S606 - an argument list, and no shell is what is wanted
        _enter(int(rest[0]))
        _agree(folder)
    except OSError as error:
        print(f"the view of the SFTP server: {error}", file=sys.stderr)
        return _FAILED
    return 0


def _take_on(folder: str) -> None:
    _checked(_libc.unshare(_CLONE_NEWNS))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount(f"{folder}/etc", "/etc", None, _MS_BIND)
    _mount("none", "/run", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, "size=4m,mode=0755")
    # The folder for sshd's privilege separation: it must be empty and belong to root.
    os.mkdir("/run/sshd", 0o755)
    os.mkdir(_ROOTS, 0o755)
    os.mkdir(_SHELLS, 0o755)
    _mount(f"{folder}/shells", _SHELLS, None, _MS_BIND)
    _mount("/usr", f"{_SHELLS}/usr", None, _MS_BIND)
    _mount(f"{folder}/../run/shells", f"{_SHELLS}/sockets", None, _MS_BIND)
    for target in (_SHELLS, f"{_SHELLS}/usr", f"{_SHELLS}/sockets"):
        _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    # For sign-ins at a terminal, sshd writes a file with a slot for each user id. The ids are large here, so the file
    # would be huge; nothing can be written here.
    _mount("none", "/var/log", "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _enter(pid: int) -> None:
    with open(f"/proc/{pid}/ns/mnt") as view:
        _checked(_libc.setns(view.fileno(), _CLONE_NEWNS))


def _agree(folder: str) -> None:
    """A login whose folder is missing gets no chroot: sshd refuses it."""
    with open(f"{folder}/logins.json") as file:
        wanted: dict[str, Any] = json.load(file)
    for login in os.listdir(_ROOTS):
        if login not in wanted:
            _release(login)
    for login, shown in wanted.items():
        try:
            source = _opened(shown)
        except OSError as error:
            _release(login)
            print(f"{login}: {error}", file=sys.stderr)
            continue
        _show(login, source)
        os.close(source)


def _opened(shown: dict[str, Any]) -> int:
    """Open the folder of a login, component by component."""
    opened = os.open(shown["home"], _FOLDER)
    try:
        if os.fstat(opened).st_uid != shown["uid"]:
            raise PermissionError(f"{shown['home']} is not the account's")
        for name in filter(None, shown["folder"].split("/")):
            if name == "..":
                raise PermissionError("a folder of a login is beneath its home")
            below = os.open(name, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = below
    except OSError:
        os.close(opened)
        raise
    return opened


def _show(login: str, source: int) -> None:
    target = f"{_ROOTS}/{login}/{_SITE}"
    if os.path.exists(target) and os.path.samestat(os.fstat(source), os.stat(target)):
        return
    _release(login)
    os.makedirs(target, 0o755)
    _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND)
    _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _release(login: str) -> None:
    """Unmount its folder."""
    target = f"{_ROOTS}/{login}/{_SITE}"
    if os.path.ismount(target):
        _checked(_libc.umount2(target.encode(), _MNT_DETACH))
    for folder in (target, f"{_ROOTS}/{login}"):
        if os.path.exists(folder):
            os.rmdir(folder)


def _mount(source: str | None, target: str, type_: str | None, flags: int, options: str | None = None) -> None:
    given = [text if text is None else text.encode() for text in (source, target, type_, options)]
    source_, target_, type__, options_ = given
    _checked(_libc.mount(source_, target_, type__, ctypes.c_ulong(flags), options_))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
