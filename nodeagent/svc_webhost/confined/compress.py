"""Packs files and folders of the site into a zip or tar.gz file, which gets its name once it is complete.

Links are packed as links, without their targets, which may belong to somebody else. Pipes and sockets are left out.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable
from typing import IO, Any, BinaryIO, Final

from svc_webhost.confined import kernel
from svc_webhost.confined.files import FILE_MODE, entry, finish, open_own, written
from svc_webhost.confined.protocol import TEMPORARY, Compress, Failed, FileError
from svc_webhost.confined.room import DiskBudget
from svc_webhost.confined.tree import BLOCK, MAX_DEPTH, Tree, held, translate_errors

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY
_EARLIEST_ZIP: Final = (1980, 1, 1, 0, 0, 0)
_LATEST_ZIP: Final = (2107, 12, 31, 23, 59, 58)

Pack = Callable[[str, os.stat_result, IO[bytes] | None, str | None], None]
"""Adds one entry, given its name in the archive, its stat, the content of a file, and the target of a link."""


def compress(tree: Tree, request: Compress) -> dict[str, Any]:
    pack_all = {"zip": _pack_zip, "tar.gz": _pack_tar}.get(request.format)
    if pack_all is None:
        raise FileError(Failed.INVALID, "An archive is made as zip or tar.gz.")
    folder, name = tree.open_parent(request.to)
    with held(folder), written(tree, request.to) as (file, temporary, placed_as):
        bounded = _Bounded(os.dup(file), DiskBudget(temporary, request.most))
        with translate_errors(request.to), io.BufferedWriter(bounded, BLOCK) as archive:
            pack_all(tree, request.paths, archive)
        with translate_errors(request.to):
            finish(file, FILE_MODE)
        with tree.changing, translate_errors(request.to):
            kernel.rename(temporary, placed_as, folder, name, replace=False)
        return entry(os.fsdecode(name), os.fstat(file), None)


class _Bounded(io.FileIO):
    def __init__(self, file: int, room: DiskBudget) -> None:
        super().__init__(file, "wb")
        self._room = room

    def write(self, block: Any, /) -> int:
        self._room.take(len(memoryview(block)))
        return super().write(block)


def _pack_zip(tree: Tree, paths: list[str], archive: BinaryIO) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as opened:

        def pack(name: str, found: os.stat_result, content: IO[bytes] | None, target: str | None) -> None:
            modified = time.gmtime(found.st_mtime)[:6]
            folder = stat.S_ISDIR(found.st_mode)
            info = zipfile.ZipInfo(
                _zip_name(name) + ("/" if folder else ""), min(max(modified, _EARLIEST_ZIP), _LATEST_ZIP)
            )
            info.create_system = 3  # 3 is Unix: then the upper half of external_attr is the mode.
            info.external_attr = (found.st_mode & 0o170777) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            info.file_size = found.st_size
            if content is None:
                opened.writestr(info, os.fsencode(target) if target is not None else b"")
                return
            with opened.open(info, "w", force_zip64=found.st_size >= 1 << 31) as into:
                while block := content.read(BLOCK):
                    into.write(block)

        _walk_all(tree, paths, pack)


def _zip_name(name: str) -> str:
    """The name as text, since names in a zip file are text."""
    return os.fsencode(name).decode(errors="replace")


def _pack_tar(tree: Tree, paths: list[str], archive: BinaryIO) -> None:
    with tarfile.open(fileobj=archive, mode="w:gz", format=tarfile.PAX_FORMAT, compresslevel=6) as opened:

        def pack(name: str, found: os.stat_result, content: IO[bytes] | None, target: str | None) -> None:
            info = tarfile.TarInfo(name)
            info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
            if target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, target
            elif content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = found.st_size
            opened.addfile(info, content)

        _walk_all(tree, paths, pack)


def _walk_all(tree: Tree, paths: list[str], pack: Pack) -> None:
    for path in paths:
        folder, name = tree.open_parent(path)
        with held(folder):
            _walk(folder, name, os.fsdecode(name), path, pack, 0)


def _walk(folder: int, name: bytes, stored_as: str, path: str, pack: Pack, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise FileError(Failed.INVALID, f"Folders in {path} are nested too deeply.")
    with translate_errors(path):
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode):
            pack(stored_as, found, None, os.readlink(os.fsdecode(name), dir_fd=folder))
        elif stat.S_ISDIR(found.st_mode):
            pack(stored_as, found, None, None)
            with held(kernel.open_beneath(folder, name, _FOLDER, follow=False)) as inner:
                for item in sorted(os.listdir(inner)):
                    if os.fsencode(item) != TEMPORARY:
                        _walk(inner, os.fsencode(item), f"{stored_as}/{item}", f"{path}/{item}", pack, depth + 1)
        elif stat.S_ISREG(found.st_mode):
            content: BinaryIO
            with os.fdopen(open_own(folder, name, path), "rb", buffering=0) as content:
                try:
                    pack(stored_as, os.fstat(content.fileno()), content, None)
                except OSError as error:
                    if error.errno is not None:
                        raise
                    raise FileError(Failed.CONFLICT, f"{path} became shorter while it was read.") from error
