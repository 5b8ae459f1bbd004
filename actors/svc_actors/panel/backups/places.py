"""Where backups lie and are worked on: folders of root's alone.

backups/repositories/<id>/      a site's repository
backups/repositories/<id>.list  the manifest of its last backup, so that what has not changed is not read again
backups/repositories/<id>.checked  is as old as the last check of all of it
backups/work/<job>/             what a job needs, gone with it
backups/put-back/<job>/         what was in the databases that an interrupted restoration or import was loading
sites/.restore-<job>/           what is restored, beside the homes so that it gets there by rename(2)
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

from svc_actors.durable import sync_folder
from svc_actors.host.folders import HostFolders
from svc_actors.host.restic.driver import CONTENT, TREE
from svc_actors.host.tree_removal import remove_tree

RESTORE: Final = ".restore-"
_READY: Final = "ready"
_OF_SITE: Final = re.compile(r"-s([0-9]+)_[^/]*\.sql\.gz$")
SPARE_BYTES: Final = 256 << 20
"""What a backup leaves free on a disk: the panel and the sites live on it."""
CHECKED_SECONDS: Final = 20 * 3600.0
"""What is backed up daily is checked daily; of what is backed up each hour, one in twenty."""


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
        """Something was left unfinished in it."""
        self._checked(repository_id).unlink(missing_ok=True)

    def _checked(self, repository_id: UUID) -> Path:
        return self.backups / "repositories" / f"{repository_id}.checked"

    def work(self, job_id: int) -> Path:
        return self.backups / "work" / str(job_id)

    def said(self, job_id: int) -> Path:
        """What a backup says of itself, fetched before the rest of it."""
        return self.work(job_id) / "said"

    def aside(self, job_id: int) -> Path:
        """What was in the databases that a restoration or an import loads."""
        return self.work(job_id) / "aside"

    def put_back(self, job_id: int) -> Path:
        return self.backups / "put-back" / str(job_id)

    def staging(self, job_id: int) -> Path:
        return self.folders.sites / f"{RESTORE}{job_id}"

    def make_work(self, job_id: int, password: str) -> Path:
        """The folder of a job, empty but for the file with the password, which root alone reads."""
        work = self.work(job_id)
        self.remove_work(job_id)
        for folder in (self.backups, self.backups / "repositories", work.parent, work):
            folder.mkdir(mode=0o700, exist_ok=True)
        for name in (TREE, CONTENT):
            (work / name).mkdir(mode=0o700)
        write_secret(work / "password", password)
        return work

    def make_ready(self, job_id: int) -> Path:
        """A folder for what is in the database that an import will empty."""
        ready = self.work(job_id) / _READY
        self.remove_work(job_id)
        for folder in (self.backups, ready.parent.parent, ready.parent, ready):
            folder.mkdir(mode=0o700, exist_ok=True)
        return ready

    def put_aside(self, job_id: int) -> None:
        """From now on whatever ends the job puts back what was made ready: before, nothing was removed, and to load it
        again would take away what visitors have written since."""
        (self.work(job_id) / _READY).rename(self.aside(job_id))
        sync_folder(self.work(job_id))

    def make_staging(self, job_id: int) -> Path:
        staging = self.staging(job_id)
        staging.mkdir(mode=0o700)
        return staging

    def remove_work(self, job_id: int) -> None:
        """Both folders, with all that is in them. Nobody but root has changed them, so nothing there leads away."""
        for folder in (self.work(job_id), self.staging(job_id)):
            if folder.exists():
                remove_tree(folder)

    def keep_aside(self, job_id: int) -> None:
        """Of a restoration that was cut short: what its databases held outlives the folder of the job."""
        kept = self.put_back(job_id)
        if self.aside(job_id).exists():
            kept.parent.mkdir(mode=0o700, exist_ok=True)
            self.aside(job_id).rename(kept)
            sync_folder(kept.parent)

    def drop_aside(self, job_id: int) -> None:
        """From now on nothing puts the databases back. One rename, as a kill in the midst of a removal would leave some
        of them to be put back; `remove_work` takes it away."""
        work = self.work(job_id)
        if self.aside(job_id).exists():
            self.aside(job_id).rename(work / "replaced")
            sync_folder(work)

    def kept_aside(self) -> list[int]:
        """The jobs whose databases wait to be put back."""
        return sorted(int(name) for name in _names(self.backups / "put-back") if name.isdigit())

    def number_kept_aside(self, job_id: int) -> int | None:
        """The number of the site whose databases these are, by the names of their dumps: a database that has gone back
        to an earlier day may not know the job, or may have given its number to another one. None: there are none."""
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
        """The jobs whose folders are there."""
        work = _names(self.backups / "work")
        staging = [name.removeprefix(RESTORE) for name in _names(self.folders.sites) if name.startswith(RESTORE)]
        return sorted({int(name) for name in (*work, *staging) if name.isdigit()})

    def free_bytes(self) -> int:
        return free_bytes_of(self.backups if self.backups.exists() else self.folders.data)


def free_bytes_of(folder: Path) -> int:
    """On the disk of a folder."""
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
