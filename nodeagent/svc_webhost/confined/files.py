"""Operations on single files and folders.

Whatever happens to the helper, a file is complete: it is written in the temporary folder and moved into place by one
rename. A tree is copied there and moved in the same way.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from json.encoder import encode_basestring_ascii as _quoted
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote_from_bytes

from svc_webhost.confined import kernel
from svc_webhost.confined.protocol import (
    ChangeMode,
    Copy,
    Delete,
    Failed,
    FileError,
    ListFolder,
    MakeFolder,
    PlaceRestored,
    Read,
    Rename,
    Stat,
    Write,
)
from svc_webhost.confined.room import DiskBudget, copy_content
from svc_webhost.confined.tree import (
    MAX_DEPTH,
    Tree,
    check_file,
    failure_of,
    held,
    is_foreign,
    parts,
    remove,
    set_mode,
    translate_errors,
)

FILE_MODE: Final = 0o644
FOLDER_MODE: Final = 0o755
MODES: Final = 0o1777
"""Modes without the set-uid and set-gid bits: programs in a site run as the site's own account."""
KEPT_SECONDS: Final = 2 * 86_400
"""Anything older in the temporary folder was left by an interrupted operation."""

_RESTORED: Final = re.compile(r"restore-[0-9]{1,20}")

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BOOLEANS: Final = ("false", "true")
_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def entry(name: str, status: os.stat_result, target: str | None) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(_entry_text(name, status, target, os.geteuid()))
    return described


def _entry_text(name: str, status: os.stat_result, target: str | None, own_uid: int) -> str:
    """An entry as JSON in the form of the API, so that a long list need not be converted again: `modified_at` in
    seconds since 1970, `mode` octal. Bytes of a name that are not UTF-8 appear as U+FFFD, and `name_exact` is then
    false. `escaped` is for a name that no path of the API can have. The text is assembled from strings: dictionaries
    for a thousand files, and encoding them, take more than twice as long."""
    shown = _shown(name)
    escaped = _quoted(quote_from_bytes(os.fsencode(name))) if shown != name or _CONTROL.search(name) else "null"
    return (
        f'{{"name":{_quoted(shown)},"kind":"{_KINDS.get(stat.S_IFMT(status.st_mode), "other")}",'
        f'"size":{status.st_size},'
        f'"mode":"{stat.S_IMODE(status.st_mode):04o}","modified_at":{int(status.st_mtime)},'
        f'"own":{_BOOLEANS[status.st_uid == own_uid]},'
        f'"target":{"null" if target is None else _quoted(_shown(target))},"name_exact":{_BOOLEANS[shown == name]},'
        f'"escaped":{escaped}}}'
    )


def _shown(name: str) -> str:
    return name if name.isascii() else name.encode(errors="surrogateescape").decode(errors="replace")


def version(status: os.stat_result) -> str:
    """Identifies the file and its last change: it changes whenever the content may have changed."""
    text = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def list_folder(tree: Tree, request: ListFolder) -> tuple[dict[str, Any], bytes]:
    """The number of entries, and the requested ones as JSON."""
    own_uid = os.geteuid()
    with held(tree.open_folder(request.path)) as folder, translate_errors(request.path):
        with os.scandir(folder) as found:
            # Sorted by the kind and the name only, because items cannot be compared: a name that is created anew during
            # the scan may come twice.
            ordered = sorted(
                (
                    (not item.is_dir(follow_symlinks=False), item.name, item)
                    for item in found
                    if item.name != ".svc-tmp" or request.path
                ),
                key=itemgetter(0, 1),
            )
        page = []
        for _, name, item in ordered[request.offset : request.offset + request.limit]:
            try:
                found_now = item.stat(follow_symlinks=False)
                target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found_now.st_mode) else None
            except FileNotFoundError:  # The file was removed since it was listed.
                continue
            page.append(_entry_text(name, found_now, target, own_uid))
    return {"total": len(ordered)}, f"[{','.join(page)}]".encode()


def _entry_of(folder: int, name: str) -> dict[str, Any] | None:
    """The entry; None if it has just been removed."""
    with suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        return entry(name, found, os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else None)
    return None


def show(tree: Tree, request: Stat) -> dict[str, Any]:
    if not parts(request.path):
        return entry("", os.fstat(tree.root), None)
    folder, name = tree.open_parent(request.path)
    with held(folder):
        shown = _entry_of(folder, os.fsdecode(name))
    if shown is None:
        raise FileError(Failed.NOT_FOUND, f"There is nothing at {request.path}.")
    return shown


def read(tree: Tree, request: Read) -> tuple[dict[str, Any], bytes]:
    with held(tree.open_file(request.path)) as file, translate_errors(request.path):
        found = os.fstat(file)
        data = os.pread(file, request.length, request.offset)
    return {"size": found.st_size, "version": version(found)}, data


def write(tree: Tree, request: Write, payload: bytes) -> dict[str, Any]:
    folder, name = tree.open_parent(request.path)
    with held(folder), written(tree, request.path) as (file, temporary, placed_as):
        mode = FILE_MODE
        with translate_errors(request.path), suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not request.replace:
                raise FileError(Failed.EXISTS, f"There is something at {request.path} already.")
            if stat.S_ISLNK(found.st_mode):
                raise FileError(Failed.CONFLICT, f"{request.path} is a link: write to what it leads to.")
            check_file(found, request.path)
            mode = stat.S_IMODE(found.st_mode) & 0o777
        if request.expected is not None and _sha256_of(tree, request.path) != request.expected:
            raise FileError(Failed.CONFLICT, f"{request.path} was changed since it was read.")
        with translate_errors(request.path):
            write_all(file, payload)
            finish(file, mode)
            kernel.rename(temporary, placed_as, folder, name, replace=request.replace)
            os.fsync(folder)
        return entry(os.fsdecode(name), os.fstat(file), None)


def _sha256_of(tree: Tree, path: str) -> str:
    with held(tree.open_file(path)) as file:
        return sha256_of(file)


def sha256_of(file: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(file, 1 << 20, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()


def write_all(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def finish(file: int, mode: int) -> None:
    """Prepare the file for its final name: when this returns, its content is on the disk."""
    os.fchmod(file, mode)
    os.fsync(file)


@contextmanager
def written(tree: Tree, path: str) -> Iterator[tuple[int, int, bytes]]:
    """A new file in the temporary folder: its descriptor, the folder's descriptor, and its name. After the block
    nothing has this name."""
    with tree.temporary() as temporary:
        name = b"write-" + secrets.token_hex(8).encode()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with translate_errors(path):
            descriptor = os.open(name, flags, 0o600, dir_fd=temporary)
        try:
            with held(descriptor):
                yield descriptor, temporary, name
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=temporary)


def make_folder(tree: Tree, request: MakeFolder) -> dict[str, Any]:
    names = parts(request.path)
    if request.parents:
        for length in range(1, len(names)):
            above = os.fsdecode(b"/".join(names[:length]))
            # An error is ignored here: the last call reports it, because its parent is then missing.
            with suppress(FileError):
                _make_folder(tree, above)
    return _make_folder(tree, request.path)


def _make_folder(tree: Tree, path: str) -> dict[str, Any]:
    folder, name = tree.open_parent(path)
    with held(folder), translate_errors(path):
        os.mkdir(name, FOLDER_MODE, dir_fd=folder)
        made = _entry_of(folder, os.fsdecode(name))
    if made is None:
        raise FileError(Failed.NOT_FOUND, f"{path} was removed again.")
    return made


def rename(tree: Tree, request: Rename) -> dict[str, Any]:
    tree.move(request.path, request.to, replace=request.replace)
    return show(tree, Stat(request.to))


def delete(tree: Tree, request: Delete) -> dict[str, Any]:
    """Move all paths out of the site before any of it is removed: so nobody sees half a tree. If one of the paths does
    not exist, nothing is deleted. If the disk is too full to create the temporary folder, they are removed in place,
    one by one, which frees space."""
    gone: list[bytes] = []
    for path in request.paths:
        show(tree, Stat(path))
    if not _has_temporary(tree):
        for path in request.paths:
            tree.remove_in_place(path)
        return {"deleted": len(request.paths)}
    try:
        for path in request.paths:
            gone.append(tree.discard(path))
    finally:
        with tree.temporary() as temporary:
            for name in gone:
                with translate_errors("what was deleted"):
                    remove(temporary, name)
    return {"deleted": len(gone)}


def _has_temporary(tree: Tree) -> bool:
    try:
        with tree.temporary():
            return True
    except FileError as error:
        if error.code is not Failed.NO_SPACE:
            raise
        return False


def change_mode(tree: Tree, request: ChangeMode) -> dict[str, Any]:
    if request.mode & ~MODES:
        raise FileError(Failed.INVALID, "A mode sets neither the user nor the group.")
    folder, name = tree.open_parent(request.path)
    with held(folder), translate_errors(request.path):
        if is_foreign(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            raise FileError(Failed.REFUSED, f"{request.path} is a hard link to a file that is not the site's own.")
        set_mode(folder, name, request.mode)
    return show(tree, Stat(request.path))


def copy(tree: Tree, request: Copy) -> dict[str, Any]:
    source, name = tree.open_parent(request.path)
    with held(source):
        target, new = tree.open_parent(request.to)
        with held(target), tree.temporary() as temporary:
            staged = b"copy-" + secrets.token_hex(8).encode()
            try:
                _copy(source, name, temporary, staged, request.path, 0, DiskBudget(temporary, request.most))
                with tree.changing, translate_errors(request.to):
                    kernel.rename(temporary, staged, target, new, replace=False)
            finally:
                with suppress(OSError):
                    remove(temporary, staged)
    return show(tree, Stat(request.to))


def _copy(source: int, name: bytes, target: int, new: bytes, path: str, depth: int, room: DiskBudget) -> None:
    """Copy a tree. Links are copied as links. Pipes, sockets and devices have no content to copy: they raise an
    error."""
    if depth > MAX_DEPTH:
        raise FileError(Failed.INVALID, f"Folders in {path} are nested too deeply.")
    with translate_errors(path):
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), new, dir_fd=target)
        elif stat.S_ISDIR(found.st_mode):
            os.mkdir(new, 0o700, dir_fd=target)
            with (
                held(kernel.open_beneath(source, name, os.O_RDONLY | os.O_DIRECTORY, follow=False)) as inner,
                held(kernel.open_beneath(target, new, os.O_RDONLY | os.O_DIRECTORY, follow=False)) as made,
            ):
                for item in os.listdir(inner):
                    below = os.fsencode(item)
                    _copy(inner, below, made, below, f"{path}/{item}", depth + 1, room)
                os.fchmod(made, stat.S_IMODE(found.st_mode) & 0o777)
        else:
            with held(open_own(source, name, path)) as original:
                with held(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)) as made:
                    copy_content(original, made, room)
                    finish(made, stat.S_IMODE(os.fstat(original).st_mode) & 0o777)


def open_own(folder: int, name: bytes, path: str) -> int:
    """Open a regular file in `folder` that belongs to the site's account, without following links."""
    with translate_errors(path):
        descriptor = kernel.open_beneath(folder, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, follow=False)
    try:
        check_file(os.fstat(descriptor), path)
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def place_restored(tree: Tree, request: PlaceRestored) -> dict[str, Any]:
    """Move a restored entry to its place. A folder can get another parent only if it is writable for the caller, so a
    read-only one is made writable for that moment."""
    if _RESTORED.fullmatch(request.name) is None:
        raise FileError(Failed.INVALID, "That is not a restored file or folder.")
    name, names = os.fsencode(request.name), parts(request.path)
    if len(names) > 1:
        above = os.fsdecode(b"/".join(names[:-1]))
        with suppress(FileError):  # An error is ignored here: the code below reports it.
            make_folder(tree, MakeFolder(above, parents=True))
    folder, placed_as = tree.open_parent(request.path)
    with held(folder), tree.temporary() as temporary, translate_errors(request.path):
        mode = make_writable(temporary, name)
        try:
            kernel.rename(temporary, name, folder, placed_as, replace=False)
        except FileExistsError:
            make_writable(folder, placed_as)
            kernel.exchange(temporary, name, folder, placed_as)
            remove(temporary, name)
        if mode is not None:
            set_mode(folder, placed_as, mode)
        os.fsync(folder)
    return show(tree, Stat(request.path))


def make_writable(folder: int, name: bytes) -> int | None:
    """Make a folder writable for its owner; returns its previous mode, None if nothing was changed."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or mode & stat.S_IWUSR:
        return None
    set_mode(folder, name, mode | stat.S_IRWXU)
    return mode


def sweep(tree: Tree, now: Callable[[], float] = time.time) -> None:
    """Remove abandoned entries of the temporary folder. If an entry cannot be removed, for example one that the site's
    own programs have put there, the others are removed nevertheless. On a full disk the folder may not exist, and then
    there is nothing in it."""
    if not _has_temporary(tree):
        return
    with tree.temporary() as temporary:
        for name in os.listdir(temporary):
            with suppress(OSError):
                found = os.stat(name, dir_fd=temporary, follow_symlinks=False)
                if not name.startswith("upload-") or found.st_mtime < now() - KEPT_SECONDS:
                    remove(temporary, os.fsencode(name))


def free_space(tree: Tree) -> dict[str, Any]:
    space = os.fstatvfs(tree.root)
    return {"bytes": space.f_bavail * space.f_frsize, "inodes": space.f_favail}


def no_space(path: str) -> FileError:
    return failure_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)
