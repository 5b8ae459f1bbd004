"""Copies files of one site for another: `python -I -S trees.py ORDER`, as root.

The order is a file with a JSON object: `source`, the folder of the site that is read, and `below`, the path in it;
`uid`, the owner of the files to copy; `target`, a folder of root's that no site can reach, and `to`, the account that
gets them; `entries`, which entries of the folder; `newest`: only files that the target lacks or has in an older
version.

The source site may swap anything at any moment. So every step starts from a descriptor of the parent folder and follows
no link, and checks concern the opened file, not its name. Only files and folders of the site's own account are copied,
and links as links. The disk's free space is checked while the copy grows, whatever was counted before. It needs the
standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.confined.room import DiskBudget, copy_content

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE: Final = 0o777
DEEPEST: Final = 200
"""How deep folders are followed: each level takes two descriptors and a nested call. A WordPress has less than 20
levels."""
_PART: Final = ".svc-part"
"""The name of an incomplete file at the place where it will replace another one in one step."""
LOGIN_LINK: Final = "svc-login-"
CONTENT: Final = "wp-content"
NEVER: Final = frozenset({"wp-config.php", ".maintenance"})
"""Files that are specific to a site: its database settings, and its maintenance mode."""


class TooDeepError(OSError):
    """A site has more levels than a process can follow; code that follows them raises this, and no other error."""

    def __init__(self) -> None:
        super().__init__(errno.ELOOP, f"folders are nested more than {DEEPEST} levels deep: remove them")


@dataclass
class CopyCounts:
    room: DiskBudget
    files: int = 0
    bytes: int = 0
    left_out: int = 0


def main() -> int:
    order = json.loads(Path(sys.argv[1]).read_text())
    try:
        counted = copy_entries(
            Path(order["source"]),
            order["below"],
            order["uid"],
            Path(order["target"]),
            order["to"],
            order["entries"],
            newest=order["newest"],
            most=order["most"],
        )
    except OSError as error:
        print(f"{error.filename or 'The copy'}: {error.strerror}.", flush=True)
        return 1
    print(json.dumps({"files": counted.files, "bytes": counted.bytes, "left_out": counted.left_out}), flush=True)
    return 0


def copy_entries(
    source: Path,
    below: Sequence[str],
    uid: int,
    target: Path,
    to: int,
    entries: Collection[str],
    *,
    newest: bool,
    most: int | None = None,
) -> CopyCounts:
    """`most`: bytes that the plan of the copy leaves; None without a limit."""
    with opened(source, below, uid) as read:
        write = os.open(target, _FOLDER)
        counted = CopyCounts(DiskBudget(write, most))
        try:
            for entry in entries:
                with _named(entry):
                    _copy(read, write, entry, uid, to, counted, newest=newest)
            os.fsync(write)
        finally:
            os.close(write)
    return counted


def merge(
    source: Path, home: Path, below: Sequence[str], uid: int, entry: str, *, since: int | None = None
) -> CopyCounts:
    """Copy the files of this entry that the site lacks or has in an older version into this folder of the site, from a
    folder of root's that mirrors it. `since`: only files written there after this time (nanoseconds). May be repeated,
    also after a kill. Blocks."""
    read = os.open(source, _FOLDER)
    try:
        with opened(home, below, uid) as write, _named(entry):
            counted = CopyCounts(DiskBudget(write))
            _copy(read, write, entry, uid, uid, counted, newest=True, since=since)
    finally:
        os.close(read)
    return counted


def listed(home: Path, below: Sequence[str], uid: int) -> list[str]:
    """The names in a folder of the site, except those that are never copied. Blocks."""
    with opened(home, below, uid) as folder:
        return sorted(name for name in os.listdir(folder) if not is_own(name))


def entries_of(home: Path, uid: int) -> list[str]:
    """The parts of a WordPress that are copied and pushed separately: each name in `public`, and each in its
    `wp-content`. Blocks. Empty if there is no such folder."""
    try:
        top = listed(home, ("public",), uid)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = [name for name in top if name != CONTENT]
    if CONTENT in top:
        names += [f"{CONTENT}/{name}" for name in listed(home, ("public", CONTENT), uid)]
    return sorted(names)


def digests(home: Path, uid: int, entries: Collection[str]) -> dict[str, str]:
    """For each entry a digest of all names below it, with their kinds, sizes, modes and times. Blocks."""
    found = {}
    for entry in entries:
        *below, name = ("public", *entry.split("/"))
        digest = hashlib.sha256()
        try:
            with opened(home, below, uid) as folder, _named(entry):
                for line in _described(folder, name, ""):
                    digest.update(line)
        except (FileNotFoundError, NotADirectoryError):
            continue
        found[entry] = digest.hexdigest()
    return found


def sizes(home: Path, uid: int, entries: Collection[str]) -> int:
    """Bytes of these entries. Blocks."""
    total = 0
    for entry in entries:
        *below, name = ("public", *entry.split("/"))
        try:
            with opened(home, below, uid) as folder, _named(entry):
                total += sum(size for size in _sizes(folder, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
    return total


def is_own(name: str) -> bool:
    return name in NEVER or name.startswith(LOGIN_LINK)


@contextmanager
def opened(home: Path, below: Sequence[str], uid: int) -> Iterator[int]:
    """A folder of the site, opened step by step from its parent."""
    folder = os.open(home, _FOLDER)
    try:
        for name in below:
            inner = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        if os.fstat(folder).st_uid != uid:
            raise PermissionError(f"{'/'.join(below)} is not the site's")
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _named(entry: str) -> Iterator[None]:
    """Names the entry instead of the whole path, which would be too long for a message."""
    try:
        yield
    except TooDeepError as error:
        error.filename = entry
        raise


def _described(folder: int, name: str, path: str, depth: int = 0) -> Iterator[bytes]:
    if depth > DEEPEST:
        raise TooDeepError
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    whole = f"{path}/{name}"
    is_folder = stat.S_ISDIR(found.st_mode)
    facts = (found.st_mode, 0 if is_folder else found.st_size, 0 if is_folder else found.st_mtime_ns)
    yield os.fsencode(whole) + repr(facts).encode()
    if is_folder:
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            for each in sorted(os.listdir(inner)):
                try:
                    yield from _described(inner, each, whole, depth + 1)
                except FileNotFoundError:
                    continue
        finally:
            os.close(inner)


def _sizes(folder: int, name: str, depth: int = 0) -> Iterator[int]:
    if depth > DEEPEST:
        raise TooDeepError
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        yield found.st_size
        return
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for each in os.listdir(inner):
            try:
                yield from _sizes(inner, each, depth + 1)
            except FileNotFoundError:
                continue
    finally:
        os.close(inner)


def _copy(
    read: int,
    write: int,
    name: str,
    uid: int,
    to: int,
    counted: CopyCounts,
    *,
    newest: bool,
    since: int | None = None,
    depth: int = 0,
) -> None:
    if depth > DEEPEST:
        raise TooDeepError
    try:
        found = os.stat(name, dir_fd=read, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            _copy_folder(read, write, name, uid, to, counted, newest=newest, since=since, depth=depth)
        elif (since is not None and found.st_ctime_ns <= since) or (newest and not _is_older(write, name, found)):
            return
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=read), name, dir_fd=write)
            os.chown(name, to, to, dir_fd=write, follow_symlinks=False)
            counted.files += 1
        elif stat.S_ISREG(found.st_mode):
            _copy_file(read, write, name, uid, to, counted, replace=newest)
        else:
            counted.left_out += 1
    except FileNotFoundError:
        return  # The file was removed meanwhile.


def _copy_folder(
    read: int,
    write: int,
    name: str,
    uid: int,
    to: int,
    counted: CopyCounts,
    *,
    newest: bool,
    since: int | None,
    depth: int,
) -> None:
    inner = os.open(name, _FOLDER, dir_fd=read)
    try:
        found = os.fstat(inner)
        if found.st_uid != uid:
            counted.left_out += 1
            return
        made = not _is_there(write, name)
        if made:
            if since is not None and not _has_since(inner, since, depth):
                return
            os.mkdir(name, 0o700, dir_fd=write)
        try:
            outer = os.open(name, _FOLDER, dir_fd=write)
        except NotADirectoryError:
            counted.left_out += 1
            return
        try:
            if not made and newest and os.fstat(outer).st_uid != to:
                counted.left_out += 1
                return
            for each in os.listdir(inner):
                if each != _PART:
                    _copy(inner, outer, each, uid, to, counted, newest=newest, since=since, depth=depth + 1)
            if made or not newest:
                os.fchown(outer, to, to)
                os.fchmod(outer, found.st_mode & _MODE)
                os.utime(outer, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(outer)
    finally:
        os.close(inner)


def _copy_file(read: int, write: int, name: str, uid: int, to: int, counted: CopyCounts, *, replace: bool) -> None:
    inner = os.open(name, _FILE, dir_fd=read)
    try:
        found = os.fstat(inner)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            counted.left_out += 1
            return
        if replace:
            with suppress(FileNotFoundError):  # Only a killed process leaves a partial file.
                os.unlink(_PART, dir_fd=write)
        outer = os.open(_PART if replace else name, _NEW, 0o600, dir_fd=write)
        try:
            counted.bytes += copy_content(inner, outer, counted.room)
            os.fchown(outer, to, to)
            os.fchmod(outer, found.st_mode & _MODE)
            os.utime(outer, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(outer)
        if replace:
            os.rename(_PART, name, src_dir_fd=write, dst_dir_fd=write)
        counted.files += 1
    finally:
        os.close(inner)


def _is_older(folder: int, name: str, than: os.stat_result) -> bool:
    """Whether the folder has no file of this name, or an older one."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(there.st_mode) and stat.S_ISREG(than.st_mode) and there.st_mtime_ns < than.st_mtime_ns


def _has_since(folder: int, since: int, depth: int) -> bool:
    """Whether something other than a folder was written below it after this time."""
    if depth > DEEPEST:
        raise TooDeepError
    for name in os.listdir(folder):
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                if found.st_ctime_ns > since:
                    return True
                continue
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            if _has_since(inner, since, depth + 1):
                return True
        finally:
            os.close(inner)
    return False


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
