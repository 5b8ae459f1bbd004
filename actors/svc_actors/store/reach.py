"""Gives the database server's own user access to its folders when the service runs as root.

PostgreSQL refuses to run as root, so it runs as a system user that has rights to its own folder only. Where a parent of
that folder, or of the server's programs, is closed to others (as /root is), an access control entry lets that user pass
through: it cannot list the folder, and no other user gains access.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SERVER_USER = "svc-postgres"

_ACL = "system.posix_acl_access"
_HEADER, _ENTRY, _VERSION, _NO_ID = struct.Struct("<I"), struct.Struct("<HHI"), 2, 0xFFFFFFFF
_OWNER, _USER, _GROUP_OWNER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_PASS = 1


@dataclass(frozen=True)
class Account:
    """The user a program runs as."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The user that PostgreSQL runs as: None for our own; as root a system user, created if missing."""
    if os.geteuid() != 0:
        return None
    entry = _entry()
    if entry is None:
        # Locked, because two concurrent useradds of the same name both succeed, and the later one assigns another id:
        # after a restart, the first one's server would not own its data. Each useradd replaces this file by a new one.
        # So a process that has waited for the lock on the old file looks again, and one that opens the new file finds
        # the user.
        with open("/etc/passwd", "rb") as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            entry = _entry() or _made()
    return Account(SERVER_USER, entry.pw_uid, entry.pw_gid)


def _entry() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SERVER_USER)
    except KeyError:
        return None


def _made() -> pwd.struct_passwd:
    program = shutil.which("useradd", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise RuntimeError(f"PostgreSQL cannot run as root: add a system user named {SERVER_USER}.")
    options = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    made = subprocess.run(
        [program, *options, "--shell", "/usr/sbin/nologin", SERVER_USER],
        capture_output=True,
        text=True,
        check=False,
    )
    entry = _entry()
    if entry is None:
        raise RuntimeError(f"Cannot add the system user {SERVER_USER}: {made.stderr.strip()}")
    return entry


def grant_traversal(account: Account, path: Path) -> None:
    """Make sure that `account` can reach `path`: let it pass through the parents that are closed to it.

    Raises `PermissionError` that names the folder when its file system knows no access control lists.
    """
    for folder in reversed(path.resolve().parents):
        status = folder.stat()
        if status.st_mode & stat.S_IXOTH and not _has_acl(folder):
            continue
        if (status.st_uid, status.st_mode & stat.S_IXUSR) == (account.uid, stat.S_IXUSR):
            continue
        try:
            os.setxattr(folder, _ACL, _with_passage(_entries(folder, status.st_mode), account.uid))
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM, errno.EACCES):
                raise
            raise PermissionError(
                f"The database server's user {account.name} cannot pass through {folder}: choose a data folder that "
                f"others may pass through, or run chmod o+x {folder}"
            ) from error


def _has_acl(folder: Path) -> bool:
    return _ACL in os.listxattr(folder)


def _entries(folder: Path, mode: int) -> list[tuple[int, int, int]]:
    if _has_acl(folder):
        raw = os.getxattr(folder, _ACL)
        return [_ENTRY.unpack_from(raw, offset) for offset in range(_HEADER.size, len(raw), _ENTRY.size)]
    return [
        (_OWNER, mode >> 6 & 7, _NO_ID),
        (_GROUP_OWNER, mode >> 3 & 7, _NO_ID),
        (_OTHER, mode & 7, _NO_ID),
    ]


def _with_passage(entries: list[tuple[int, int, int]], uid: int) -> bytes:
    """The access control list with passage for `uid`: entries in the kernel's order, the mask as narrow as possible."""
    kept = [entry for entry in entries if entry[0] != _MASK and (entry[0], entry[2]) != (_USER, uid)]
    ours = next((permissions for tag, permissions, owner in entries if (tag, owner) == (_USER, uid)), 0)
    old_mask = next((permissions for tag, permissions, _ in entries if tag == _MASK), 7)
    # Rights that the old mask has withheld stay withheld: they are removed from the entries before the mask is widened.
    masked = [
        (tag, permissions & old_mask if tag in (_USER, _GROUP_OWNER, _GROUP) else permissions, owner)
        for tag, permissions, owner in kept
    ]
    listed = [*masked, (_USER, ours & old_mask | _PASS, uid)]
    mask = 0
    for tag, permissions, _ in listed:
        if tag in (_USER, _GROUP_OWNER, _GROUP):
            mask |= permissions
    listed.append((_MASK, mask, _NO_ID))
    return _HEADER.pack(_VERSION) + b"".join(
        _ENTRY.pack(*entry) for entry in sorted(listed, key=lambda e: (e[0], e[2]))
    )
