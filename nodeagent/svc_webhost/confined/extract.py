"""Unpacks archives into a folder of their own, which comes into the site only once all of the archive was good.

One refused entry refuses the archive: an author who packed a device or an escape among files is not trusted for the
rest. Links are created last, when nothing else is written, so that no entry can be written through one; they may not
lead out of the unpacked folder. Set-uid and set-gid bits are dropped. Of files and links with one name the last one
counts, as for tar and unzip: `tar -r` appends newer versions of files.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, Final

from svc_webhost.confined import kernel
from svc_webhost.confined.archive_formats import MAX_TARGET, Kind, Member, members, understood
from svc_webhost.confined.files import FOLDER_MODE, make_writable, write_all
from svc_webhost.confined.protocol import TEMPORARY, Extract, Failed, FileError, PlaceImported
from svc_webhost.confined.room import DiskBudget
from svc_webhost.confined.tree import MAX_NAME, MAX_PATH, Tree, held, parts, remove, translate_errors

_MAX_LEVELS: Final = 100
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_PUBLIC: Final = b"public"
_LATEST: Final = 1 << 33
"""A later time (after the year 2242) is an error in the archive."""


def extract(tree: Tree, request: Extract) -> dict[str, Any]:
    archive: BinaryIO
    with os.fdopen(tree.open_file(request.path), "rb", buffering=1 << 20) as archive, tree.temporary() as temporary:
        staged = b"extract-" + secrets.token_hex(8).encode()
        with translate_errors(request.to):
            os.mkdir(staged, FOLDER_MODE, dir_fd=temporary)
        try:
            with held(kernel.open_beneath(temporary, staged, _FOLDER, follow=False)) as folder:
                with translate_errors(request.to), understood():
                    entries = unpack(folder, members(archive, request.encoding), DiskBudget(folder, request.most))
                with tree.changing:
                    _place(tree, temporary, staged, folder, request)
        finally:
            with suppress(OSError):
                remove(temporary, staged)
    return {"entries": entries}


def unpack(folder: int, of: Iterable[Member], room: DiskBudget) -> int:
    """Unpack these into a folder that nobody else has; returns how many there were."""
    count = 0
    later: dict[tuple[bytes, ...], Member] = {}
    folders: list[tuple[list[bytes], int]] = []
    with _Folders(folder) as made:
        for member in of:
            names = names_of(member)
            if not names:
                continue
            count += 1
            match member.kind:
                case Kind.FOLDER:
                    made.at(names)
                    folders.append((names, member.mode | stat.S_IRWXU))
                case Kind.FILE:
                    _write(made.at(names[:-1]), names[-1], member, room)
                    later.pop(tuple(names), None)
                case Kind.LINK | Kind.HARD_LINK:
                    later[tuple(names)] = member
        for hard in (True, False):
            for path, member in later.items():
                if (member.kind is Kind.HARD_LINK) is hard:
                    _link(folder, made.at(list(path[:-1])), list(path), member)
        for names, mode in reversed(folders):
            with held(kernel.open_beneath(folder, b"/".join(names), _FOLDER, follow=False)) as inner:
                os.fchmod(inner, mode)
    return count


class _Folders:
    """The folders being unpacked. The folders on the path of the last entry stay open, since entries come folder by
    folder."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._path: list[bytes] = []
        self._open: list[int] = []

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(0)

    def at(self, names: list[bytes]) -> int:
        """The folder at this path, created if needed."""
        common = 0
        while common < min(len(names), len(self._path)) and names[common] == self._path[common]:
            common += 1
        self._close(common)
        for name in names[common:]:
            above = self._open[-1] if self._open else self._root
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, FOLDER_MODE, dir_fd=above)
                self._open.append(kernel.open_beneath(above, name, _FOLDER, follow=False))
            except NotADirectoryError:
                raise _twice(b"/".join(names)) from None
            self._path.append(name)
        return self._open[-1] if self._open else self._root

    def _close(self, keep: int) -> None:
        while len(self._open) > keep:
            os.close(self._open.pop())
        del self._path[keep:]


def names_of(member: Member) -> list[bytes]:
    """The parts of an entry's name. Raises `FileError` for a name that leads out of the folder."""
    name = member.name
    names = [part for part in name.split(b"/") if part != b"."]
    while names and not names[-1]:
        names.pop()
    if name.startswith(b"/") or b".." in names or b"" in names or b"\0" in name:
        raise FileError(Failed.REFUSED, f"{_for_message(name)} in the archive leads out of it.")
    if len(name) > MAX_PATH or len(names) > _MAX_LEVELS or any(len(part) > MAX_NAME for part in names):
        raise FileError(Failed.REFUSED, f"{_for_message(name)} in the archive is too long.")
    return names


def _write(folder: int, name: bytes, member: Member, room: DiskBudget) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    except FileExistsError:
        _remove_earlier(folder, name, member)
        descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    with held(descriptor):
        for block in member.content:
            room.take(len(block))
            write_all(descriptor, block)
        os.fchmod(descriptor, member.mode & 0o777 | 0o600)
        modified = min(max(member.modified, 0), _LATEST)
        os.utime(descriptor, (modified, modified))


def _remove_earlier(folder: int, name: bytes, member: Member) -> None:
    """Remove what an earlier entry with the same name has left. Raises `FileError` if that is a folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise _twice(member.name) from None
    os.unlink(name, dir_fd=folder)


def _link(root: int, folder: int, names: list[bytes], member: Member) -> None:
    try:
        if member.kind is Kind.HARD_LINK:
            original = names_of(Member(member.target, Kind.FILE, 0, 0))
            if not original:
                raise _out(member)
            if original == names:
                raise _out(member)
            with held(kernel.open_beneath(root, b"/".join(original[:-1]) or b".", _FOLDER, follow=False)) as beside:
                _make_room(folder, names[-1], member)
                os.link(original[-1], names[-1], src_dir_fd=beside, dst_dir_fd=folder, follow_symlinks=False)
        else:
            _check_target(names, member)
            _make_room(folder, names[-1], member)
            os.symlink(member.target, names[-1], dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        raise FileError(
            Failed.REFUSED, f"{_for_message(member.name)} in the archive links to something that is not in it."
        ) from None


def _make_room(folder: int, name: bytes, member: Member) -> None:
    with suppress(FileNotFoundError):
        _remove_earlier(folder, name, member)


def _check_target(names: list[bytes], member: Member) -> None:
    """Refuse a link that leads out: resolved from the link's own folder, no step may go above the unpacked folder."""
    target = member.target
    if not target or len(target) > MAX_TARGET or b"\0" in target or target.startswith(b"/"):
        raise _out(member)
    level = len(names) - 1
    for part in target.split(b"/"):
        level += -1 if part == b".." else 0 if part in (b"", b".") else 1
        if level < 0:
            raise _out(member)


def _place(tree: Tree, temporary: int, staged: bytes, folder: int, request: Extract) -> None:
    """Put the unpacked folder in place: it becomes the folder `to`, or its entries are moved into `to` if that
    exists."""
    if parts(request.to):
        above, name = tree.open_parent(request.to)
        with held(above), translate_errors(request.to):
            try:
                kernel.rename(temporary, staged, above, name, replace=False)
            except FileExistsError:
                pass
            else:
                return
    with held(tree.open_folder(request.to)) as target, translate_errors(request.to):
        if not parts(request.to) and os.fsdecode(TEMPORARY) in os.listdir(folder):
            raise FileError(Failed.REFUSED, f"{os.fsdecode(TEMPORARY)} is reserved for unfinished files.")
        _merge(folder, target, request, "", _check)
        _merge(folder, target, request, "", _move)


def place_imported(tree: Tree, request: PlaceImported) -> dict[str, Any]:
    """Put the folders of an imported site in place. The document root comes last, so that its scripts find the other
    folders there."""
    replacing = Extract("", "", replace=True)
    with (
        held(tree.open_folder(request.staged)) as staged,
        held(tree.open_folder("")) as root,
        translate_errors("The site's folder"),
    ):
        if os.fsdecode(TEMPORARY) in os.listdir(staged):
            raise FileError(Failed.REFUSED, f"{os.fsdecode(TEMPORARY)} is reserved for unfinished files.")
        with suppress(FileExistsError):
            os.mkdir(_PUBLIC, FOLDER_MODE, dir_fd=staged)
        for step in (_check, _move):
            _merge(staged, root, replacing, "", step, but=_PUBLIC)
        try:
            kernel.rename(staged, _PUBLIC, root, _PUBLIC, replace=False)
        except FileExistsError:
            # Moving a folder to another parent with rename(2) changes its "..", which is possible only in a writable
            # folder.
            make_writable(root, _PUBLIC)
            kernel.exchange(staged, _PUBLIC, root, _PUBLIC)
        os.fsync(root)
    return {}


_Step = Callable[[int, int, bytes, bool], None]


def _merge(source: int, target: int, request: Extract, path: str, step: _Step, but: bytes | None = None) -> None:
    for item in os.listdir(source):
        name, shown = os.fsencode(item), f"{path}{item}"
        if name == but:
            continue
        new = os.stat(name, dir_fd=source, follow_symlinks=False)
        try:
            old = os.stat(name, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            step(source, target, name, False)
            continue
        if stat.S_ISDIR(new.st_mode) and stat.S_ISDIR(old.st_mode):
            with (
                held(kernel.open_beneath(source, name, _FOLDER, follow=False)) as inner,
                held(kernel.open_beneath(target, name, _FOLDER, follow=False)) as outer,
            ):
                _merge(inner, outer, request, f"{shown}/", step)
        elif stat.S_ISDIR(old.st_mode) or stat.S_ISDIR(new.st_mode):
            raise FileError(
                Failed.CONFLICT, f"{shown} is a folder in the archive or the site, and a file in the other."
            )
        elif not request.replace:
            raise FileError(Failed.EXISTS, f"{shown} already exists; nothing was unpacked.")
        else:
            step(source, target, name, True)


def _check(source: int, target: int, name: bytes, replace: bool) -> None:
    """The step of the first pass, which moves nothing. The first pass is made so that an error which would end the
    second pass half-way is raised before anything was moved."""


def _move(source: int, target: int, name: bytes, replace: bool) -> None:
    kernel.rename(source, name, target, name, replace=replace)


def _twice(name: bytes) -> FileError:
    return FileError(Failed.REFUSED, f"The archive has {_for_message(name)} twice, as a folder and as something else.")


def _out(member: Member) -> FileError:
    return FileError(Failed.REFUSED, f"{_for_message(member.name)} in the archive is a link that leads out of it.")


def _for_message(name: bytes) -> str:
    return name[:200].decode(errors="replace")
