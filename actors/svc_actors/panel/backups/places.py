"""Folders of backups and of work on them; only root can read them.

backups/repositories/<id>/      a site's repository
backups/repositories/<id>.list  the manifest of its last backup, so that unchanged files are not read again
backups/repositories/<id>.checked  its mtime is the time of the last check of the whole repository
backups/data/<check>/           indexes and trees of a target's repository, while its data is read in parts
backups/work/<job>/             what a job needs, removed with it
backups/put-back/<job>/         former content of databases that an interrupted restoration or import was loading
sites/.restore-<job>/           restored files, next to the homes so that rename(2) can move them there
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from svc_common.durable import sync_folder
from svc_webhost.folders import HostFolders
from svc_webhost.restic.driver import CONTENT, TREE
from svc_webhost.tree_removal import remove_tree

RESTORE: Final = ".restore-"
_READY: Final = "ready"
_OF_SITE: Final = re.compile(r"-s([0-9]+)_[^/]*\.sql\.gz$")
SPARE_BYTES: Final = 256 << 20
"""Bytes that a backup leaves free on a disk, because the panel and the sites use the same disk."""
CHECKED_SECONDS: Final = 20 * 3600.0
"""A repository is checked at most once in this time: daily backups are checked every day, and one in twenty of hourly
backups."""


@dataclass(frozen=True)
class Places:
    folders: HostFolders

    @property
    def backups(self) -> Path:
        return self.folders.data / "backups"

    def repository(self, repository_id: UUID) -> Path:
        return self.backups / "repositories" / str(repository_id)

    def manifest(self, repository_id: UUID) -> Path:
        return self.backups / "repositories" / f"{repository_id}.list"

    def is_checked(self, repository_id: UUID) -> bool:
        """Whether the whole repository was checked within `CHECKED_SECONDS`."""
        try:
            return time.time() - self._checked(repository_id).stat().st_mtime < CHECKED_SECONDS
        except FileNotFoundError:
            return False

    def write_checked(self, repository_id: UUID) -> None:
        self._checked(repository_id).touch()

    def write_unchecked(self, repository_id: UUID) -> None:
        """Record that the repository contains something unfinished, so that the next check reads all of it."""
        self._checked(repository_id).unlink(missing_ok=True)

    def _checked(self, repository_id: UUID) -> Path:
        return self.backups / "repositories" / f"{repository_id}.checked"

    @property
    def data_caches(self) -> Path:
        return self.backups / "data"

    def make_data_cache(self, check_id: UUID) -> Path:
        """The folder of one place whose data is read, without those of other places."""
        for name in _names(self.data_caches):
            if name != str(check_id):
                remove_tree(self.data_caches / name)
        cache = self.data_caches / str(check_id)
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        return cache

    def work(self, job_id: int) -> Path:
        return self.backups / "work" / str(job_id)

    def said(self, job_id: int) -> Path:
        """The part of a backup that describes it, which is fetched first."""
        return self.work(job_id) / "said"

    def aside(self, job_id: int) -> Path:
        """The former content of databases that a restoration or an import is loading."""
        return self.work(job_id) / "aside"

    def put_back(self, job_id: int) -> Path:
        return self.backups / "put-back" / str(job_id)

    def staging(self, job_id: int) -> Path:
        return self.folders.sites / f"{RESTORE}{job_id}"

    def make_work(self, job_id: int, password: str) -> Path:
        """The folder of a job, empty but for the file with the password, which root alone can read."""
        work = self.work(job_id)
        self.remove_work(job_id)
        for folder in (self.backups, self.backups / "repositories", work.parent, work):
            folder.mkdir(mode=0o700, exist_ok=True)
        for name in (TREE, CONTENT):
            (work / name).mkdir(mode=0o700)
        write_secret(work / "password", password)
        return work

    def make_ready(self, job_id: int) -> Path:
        """Create a folder for the content of the database that an import is about to empty."""
        ready = self.work(job_id) / _READY
        self.remove_work(job_id)
        for folder in (self.backups, ready.parent.parent, ready.parent, ready):
            folder.mkdir(mode=0o700, exist_ok=True)
        return ready

    def put_aside(self, job_id: int) -> None:
        """Mark the saved content as to be loaded again however the job ends. This is called only when the first content
        is about to be removed: before that, loading would undo what visitors have written since."""
        (self.work(job_id) / _READY).rename(self.aside(job_id))
        sync_folder(self.work(job_id))

    def make_staging(self, job_id: int) -> Path:
        staging = self.staging(job_id)
        staging.mkdir(mode=0o700)
        return staging

    def remove_work(self, job_id: int) -> None:
        """Remove both folders with their content. Only root has written to them, so no link in them leads elsewhere."""
        for folder in (self.work(job_id), self.staging(job_id)):
            if folder.exists():
                remove_tree(folder)

    def keep_aside(self, job_id: int) -> None:
        """After a restoration that was cut short: keep the former content of its databases longer than the folder of
        the job."""
        kept = self.put_back(job_id)
        if self.aside(job_id).exists():
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            self.aside(job_id).rename(kept)
            sync_folder(kept.parent)

    def drop_aside(self, job_id: int) -> None:
        """Withdraw the mark of `put_aside`: the databases keep their new content. This is one rename, because a kill in
        the middle of a removal would leave some of the databases to be put back. `remove_work` removes the renamed
        folder."""
        work = self.work(job_id)
        if self.aside(job_id).exists():
            self.aside(job_id).rename(work / "replaced")
            sync_folder(work)

    def kept_aside(self) -> list[int]:
        """Jobs whose databases wait to be put back."""
        return sorted(int(name) for name in _names(self.backups / "put-back") if name.isdigit())

    def number_kept_aside(self, job_id: int) -> int | None:
        """Number of the site to which these databases belong, or None if there are none. It is read from the names of
        their dumps: if the panel's own database was restored to an earlier day, it may not know the job, or may have
        reused the job's number."""
        found = [match for name in _names(self.put_back(job_id)) if (match := _OF_SITE.search(name))]
        return int(found[0][1]) if found else None

    def days_kept_aside(self, job_id: int) -> float:
        return (time.time() - self.put_back(job_id).stat().st_mtime) / 86400

    def remove_repository(self, repository_id: UUID) -> None:
        with suppress(FileNotFoundError):
            remove_tree(self.repository(repository_id))
        self.manifest(repository_id).unlink(missing_ok=True)
        self.write_unchecked(repository_id)

    def left_over(self) -> list[int]:
        """Jobs that still have a folder."""
        work = _names(self.backups / "work")
        staging = [name.removeprefix(RESTORE) for name in _names(self.folders.sites) if name.startswith(RESTORE)]
        return sorted({int(name) for name in (*work, *staging) if name.isdigit()})

    def free_bytes(self) -> int:
        return free_bytes_of(self.backups if self.backups.exists() else self.folders.data)


def free_bytes_of(folder: Path) -> int:
    """Free bytes on the disk of a folder."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def write_secret(file: Path, secret: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as opened:
        opened.write(secret)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
