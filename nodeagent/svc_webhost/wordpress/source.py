"""The source of the files of new WordPress sites.

By default Debian's package `wordpress`, which gets its security updates; else an archive of wordpress.org that an
administrator has put on this server, with its SHA-256. A server with neither has no sites of this type.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final

import trio

from svc_webhost.tree_removal import remove_tree

DEBIAN: Final = Path("/usr/share/wordpress")
_PROOF: Final = Path("wp-includes/version.php")
_CHUNK: Final = 1 << 20
_MOST_BYTES: Final = 1 << 30
"""The most bytes of the unpacked WordPress, which has a tenth of this."""


class WordPressError(Exception):
    """The request failed; the message says why."""


@dataclass(frozen=True)
class WordPressSource:
    """`path` is a folder with WordPress in it, or an archive (.tar.gz, .zip), of which `sha256` is the digest."""

    path: Path = DEBIAN
    sha256: str | None = None


class WordPressTree:
    """The folder with the source's files. `folder` is where an archive is unpacked, once for each digest."""

    def __init__(self, source: WordPressSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._one = trio.Lock()

    async def path(self) -> Path:
        """A folder with the files, readable for every account. Raises `WordPressError` if there is no WordPress, or the
        archive has another digest."""
        async with self._one:
            return await trio.to_thread.run_sync(self._found)

    async def languages(self) -> frozenset[str]:
        """The languages of the source besides English, such as `de_DE`."""
        tree = await self.path()
        return await trio.to_thread.run_sync(_languages, tree)

    def _found(self) -> Path:
        source = self._source
        if source.sha256 is None:
            if not (source.path / _PROOF).is_file():
                raise WordPressError(
                    f"there is no WordPress in {source.path}: `apt-get install wordpress` puts it there, or "
                    "wordpress_source in /etc/svc/panel.toml names another folder or an archive"
                )
            return source.path
        unpacked = self._folder / source.sha256
        if not unpacked.is_dir():
            _unpack(source.path, source.sha256, unpacked)
        return _top(unpacked)


def _unpack(archive: Path, sha256: str, to: Path) -> None:
    """Unpack the archive into `to`, completely or not at all: an unfinished folder has another name."""
    to.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.part")
    remove_tree(part, ignore_errors=True)
    part.mkdir(mode=0o755)
    try:
        # The archive is unpacked through the opened file whose digest was checked, even if the path is replaced
        # meanwhile.
        with archive.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            if digest.hexdigest() != sha256:
                raise WordPressError(
                    f"{archive} has the SHA-256 {digest.hexdigest()}, not {sha256}; nothing was unpacked"
                )
            file.seek(0)
            for name, content in _files(file):
                _write(part, name, content)
        _top(part)
        part.rename(to)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise WordPressError(f"{archive} cannot be unpacked: {error}") from error
    finally:
        remove_tree(part, ignore_errors=True)


def _files(archive: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """Raises `WordPressError` for anything that WordPress does not have: links, devices, a gigabyte."""
    total = 0
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                total += info.file_size
                if total > _MOST_BYTES:
                    raise WordPressError("the archive is too large to be WordPress")
                if not info.is_dir():
                    yield info.filename, members.open(info)
        return
    archive.seek(0)
    with tarfile.open(fileobj=archive) as entries:
        for entry in entries:
            total += entry.size
            if total > _MOST_BYTES:
                raise WordPressError("the archive is too large to be WordPress")
            content = entries.extractfile(entry) if entry.isfile() else None
            if content is not None:
                yield entry.name, content
            elif not entry.isdir():
                raise WordPressError(f"the archive has {entry.name}, which is neither a file nor a folder")


def _write(folder: Path, name: str, content: IO[bytes]) -> None:
    """Write a file with mode 0644, and folders with 0755, whatever the archive says."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise WordPressError(f"the archive has {name}, which leads out of its folder")
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("xb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o644)
    for parent in (path.parent, *path.parent.parents):
        if parent == folder.parent:
            break
        parent.chmod(0o755)


def _top(folder: Path) -> Path:
    """Archives of wordpress.org have everything in a folder `wordpress`."""
    for found in (folder, folder / "wordpress"):
        if (found / _PROOF).is_file():
            return found
    raise WordPressError("the archive has no WordPress in it")


def _languages(tree: Path) -> frozenset[str]:
    names = (path.stem for path in (tree / "wp-content" / "languages").glob("*.mo"))
    return frozenset(name for name in names if "-" not in name)
