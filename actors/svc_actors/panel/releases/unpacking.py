"""Unpacks a release's archive into its folder. The folder gets its name only once everything is on the disk."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Final

from svc_actors.panel.releases.manifest import Manifest, ReleaseError
from svc_webhost.tree_removal import remove_tree

PROGRAM: Final = Path("bin/svc")
_PART: Final = ".part"


def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Does nothing if the folder exists. Accepts only files and folders, and makes them readable for everybody and
    writable for root. Raises `ReleaseError`."""
    if folder.is_dir():
        return
    part = folder.with_name(f"{folder.name}{_PART}")
    remove_tree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o755, parents=True)
        with tarfile.open(archive, "r|gz") as entries:
            total = 0
            for entry in entries:
                total += entry.size
                if total > manifest.archive.unpacked:
                    raise ReleaseError(f"{archive.name} is larger than its manifest says")
                _put(entries, entry, part)
        if not os.access(part / PROGRAM, os.X_OK):
            raise ReleaseError(f"{archive.name} has no program {PROGRAM}")
        os.sync()
        part.rename(folder)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ReleaseError(f"{archive.name} cannot be unpacked: {error}") from error
    finally:
        remove_tree(part, ignore_errors=True)
    os.sync()


def _put(entries: tarfile.TarFile, entry: tarfile.TarInfo, part: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise ReleaseError(f"the archive has the name {entry.name!r} in it, which leads out of it")
    path = part / name
    if entry.isdir():
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    elif entry.isfile() and (content := entries.extractfile(entry)) is not None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        mode = 0o755 if entry.mode & 0o100 else 0o644
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            shutil.copyfileobj(content, file)
        # The modification time is restored because Python uses it to decide whether a .pyc belongs to this file.
        os.utime(path, (entry.mtime, entry.mtime))
    else:
        raise ReleaseError(f"the archive has {entry.name!r} in it, which is neither a file nor a folder")
