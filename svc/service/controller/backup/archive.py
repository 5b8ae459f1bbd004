"""What a backup of the controller is: a tar inside of an age file, with a manifest as its last member.

    database/00000 ...     the pieces of one `pg_dump --format=custom`, in order
    files/secret.key ...   files of the data folder: the sealing key, the controller's certificate, archived audit rows
    controller.toml        the configuration file, where there was one
    manifest.json          what all of this is, with sizes and hashes

The dump is stored in pieces, because tar needs the size of a member in advance, and the dump is never written to a disk
unencrypted to find out its size. The manifest comes last, so an archive that has a manifest was written to its end.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from svc.service.controller.backup.age import CannotDecrypt, Decrypting, Encrypting

FORMAT: Final = 1
MANIFEST, CONFIGURATION = "manifest.json", "controller.toml"
_DATABASE, _FILES = "database", "files"
_LARGEST_MANIFEST: Final = 64 * 1024 * 1024
_PIECE: Final = 1024 * 1024


class Content(BaseModel):
    """What the manifest says of one file, or of all pieces of the dump together. `mode`: the permissions of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    size: int
    sha256: str
    mode: int = 0o600


class Manifest(BaseModel):
    """`migrations`: the last migration of each component; `files`: by their path in the data folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int
    release: str
    host: str
    taken_at: datetime
    migrations: dict[str, int]
    database: Content
    files: dict[str, Content]
    configuration: Content | None


class NotAnArchive(Exception):  # noqa: N818 - named for what it says
    """This is no backup of a controller, or an incomplete one; the message says why."""


class ArchiveWriter:
    """One backup, written piece by piece; it is complete once `finish` has returned."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        self._encrypting = Encrypting(file, passphrase)
        encrypting = cast("BinaryIO", self._encrypting)
        self._tar = tarfile.open(fileobj=encrypting, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - see `finish`
        self._database, self._database_size, self._pieces = hashlib.sha256(), 0, 0
        self._files: dict[str, Content] = {}
        self._configuration: Content | None = None

    def add_database(self, piece: bytes) -> None:
        self._add(f"{_DATABASE}/{self._pieces:05}", piece)
        self._database.update(piece)
        self._database_size += len(piece)
        self._pieces += 1

    def add_file(self, folder: Path, path: Path) -> None:
        """Add a file of the data folder; a file that grows meanwhile is read up to its initial length."""
        name = path.relative_to(folder).as_posix()
        digest = hashlib.sha256()
        with path.open("rb") as file:
            member = self._tar.gettarinfo(arcname=f"{_FILES}/{name}", fileobj=file)
            member.uname = member.gname = ""
            member.uid = member.gid = 0
            self._tar.addfile(member, cast("BinaryIO", _Hashed(file, digest)))
        self._files[name] = Content(size=member.size, sha256=digest.hexdigest(), mode=member.mode & 0o777)

    def add_configuration(self, path: Path) -> None:
        text = path.read_bytes()
        self._add(CONFIGURATION, text)
        self._configuration = _content(text)

    def finish(self, *, release: str, host: str, taken_at: datetime, migrations: dict[str, int]) -> Manifest:
        manifest = Manifest(
            format=FORMAT,
            release=release,
            host=host,
            taken_at=taken_at,
            migrations=migrations,
            database=Content(size=self._database_size, sha256=self._database.hexdigest()),
            files=self._files,
            configuration=self._configuration,
        )
        self._add(MANIFEST, manifest.model_dump_json(indent=1).encode())
        self._tar.close()
        self._encrypting.finish()
        return manifest

    def _add(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = len(data), 0o600, int(datetime.now(UTC).timestamp())
        self._tar.addfile(member, io.BytesIO(data))


class ArchiveReader:
    """Reads one archive from start to end, once. Every method raises `CannotDecrypt` or `NotAnArchive`."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        self._decrypting = Decrypting(file, passphrase)

    def verify(self) -> Manifest:
        """Read the whole archive, and compare every hash with the manifest's."""
        found: dict[str, Content] = {}
        database, size = hashlib.sha256(), 0
        manifest: Manifest | None = None
        for member, name, content in self._members():
            if manifest is not None:
                raise NotAnArchive(f"The archive has an unexpected entry after its manifest: {name}.")
            digest, length = hashlib.sha256(), 0
            of_database = name.startswith(f"{_DATABASE}/")
            if name == MANIFEST:
                manifest = _manifest(content.read(_LARGEST_MANIFEST))
                continue
            for piece in _pieces(content):
                digest.update(piece)
                length += len(piece)
                if of_database:
                    database.update(piece)
                    size += len(piece)
            if not of_database:
                found[name] = Content(size=length, sha256=digest.hexdigest(), mode=member.mode & 0o777)
        if manifest is None:
            raise NotAnArchive("The archive has no manifest.")
        expected = {f"{_FILES}/{name}": content for name, content in manifest.files.items()}
        if manifest.configuration is not None:
            expected[CONFIGURATION] = manifest.configuration
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if (size, database.hexdigest()) != (manifest.database.size, manifest.database.sha256):
            wrong.append("the database")
        if wrong:
            raise NotAnArchive(f"The contents differ from the manifest: {', '.join(wrong[:5])}.")
        return manifest

    def read(self) -> Iterator[tuple[str | None, int, Iterator[bytes]]]:
        """The contents as (path in the data folder, mode, pieces): first the dump, whose path is None, then the files;
        the path of the configuration file is `CONFIGURATION`. Only for an archive that `verify` has accepted."""
        for member, name, content in self._members():
            kind, _, rest = name.partition("/")
            if kind == _DATABASE:
                yield None, 0o600, _pieces(content)
            elif kind == _FILES and ".." not in PurePosixPath(rest).parts and not rest.startswith("/"):
                yield rest, member.mode & 0o777, _pieces(content)
            elif name == CONFIGURATION:
                yield CONFIGURATION, 0o600, _pieces(content)
            elif name != MANIFEST:
                raise NotAnArchive(f"The archive has an entry that does not belong in a backup: {name}")

    def _members(self) -> Iterator[tuple[tarfile.TarInfo, str, BinaryIO]]:
        try:
            with tarfile.open(fileobj=cast("BinaryIO", self._decrypting), mode="r|") as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isreg() else None
                    if content is None:
                        raise NotAnArchive(f"The archive has an entry that is not a file: {member.name}")
                    yield member, member.name, cast("BinaryIO", content)
            # Read to the very end: only the mark of the last chunk proves that the file was not truncated.
            while self._decrypting.read(_PIECE):
                pass
        except (tarfile.TarError, EOFError) as error:
            raise NotAnArchive(f"The archive cannot be read: {error}") from error


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, file: BinaryIO, digest: hashlib._Hash) -> None:
        self._file = file
        self._digest = digest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data


def _manifest(text: bytes) -> Manifest:
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise NotAnArchive(
            f"The manifest of the archive is of a kind that this release does not know: {error}"
        ) from error
    if manifest.format != FORMAT:
        raise NotAnArchive(f"The archive has the format {manifest.format}; this release knows {FORMAT}.")
    return manifest


def _content(data: bytes) -> Content:
    return Content(size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _pieces(content: BinaryIO) -> Iterator[bytes]:
    while piece := content.read(_PIECE):
        yield piece


__all__ = ["CONFIGURATION", "ArchiveReader", "ArchiveWriter", "CannotDecrypt", "Manifest", "NotAnArchive"]
