"""restic's inputs and outputs as types."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from svc_common.errors import ErrorCode, ServiceError


class Run(Protocol):
    """Runs a program to its end. When the call is cancelled or the core dies, the program and its children are killed.
    Raises ExitedError if it exits with a status other than 0, and other ServiceErrors if it is stopped."""

    async def __call__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: Path | None = None,
        read: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class SftpFolder:
    """A folder of an SFTP server, and the command of OpenSSH's sftp with all options to reach it."""

    command: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class Repository:
    """A repository's place and credentials. `environment` may hold secrets: only restic gets it. `sftp` is the same
    place without restic."""

    location: str
    password_file: Path
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    sftp: SftpFolder | None = None
    explains: bool = True
    """False: the repository's server explains a refusal only to a request without `options`."""

    @property
    def is_local(self) -> bool:
        """Whether it is in a folder of this server."""
        return self.location.startswith("/")


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Snapshot(_Told):
    """`id` is the full id. `time` is that of the backup; a copy and a new tag do not change it."""

    id: str
    tags: tuple[str, ...] = ()
    time: datetime | None = None


class BackupEnded(_Told):
    """restic's summary. `data_added` are the bytes that the repository has grown by."""

    snapshot_id: str
    total_files_processed: int
    total_bytes_processed: int
    data_added: int


class Scanned(_Told):
    """`new_bytes`: the bytes of files that the previous backup lacks. `named`: the first of the entries that were left
    out."""

    files: int
    bytes: int
    new_bytes: int
    left_out: int
    named: tuple[str, ...] = ()


class Settled(_Told):
    """`changed`: entries that were changed between the manifest and the snapshot. `exact`: the manifest inside the
    snapshot matches the snapshot."""

    files: int
    bytes: int
    changed: int
    exact: bool = False


class Verified(_Told):
    """`wrong`: how many entries differ from the manifest; `named`: the first of them, with the difference."""

    entries: int
    wrong: int
    named: tuple[str, ...] = ()


class SnapshotIncompleteError(ServiceError):
    """restic could not read a file: the snapshot exists, but is not a backup."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, hint="The job's log names the files. Nothing was kept.")


class DamagedDataError(ServiceError):
    """Data of a repository is lost, or is not what was written. `packs`: those that restic names, by their whole names;
    none if it names only trees, or nothing."""

    def __init__(self, message: str, packs: Sequence[str] = ()) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message)
        self.packs = tuple(packs)


class NoRepositoryError(ServiceError):
    """There is no repository at that location."""


class StalledError(ServiceError):
    """restic made no progress and was stopped: its source or target hangs."""
