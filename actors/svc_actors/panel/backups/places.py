"""Where backups lie and are worked on: folders of root's alone.

backups/repositories/<id>/      a site's repository
backups/repositories/<id>.list  the manifest of its last backup, so that what has not changed is not read again
backups/work/<job>/             what a job needs, gone with it
sites/.restore-<job>/           what is restored, beside the homes so that it gets there by rename(2)
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from svc_actors.host.folders import HostFolders
from svc_actors.host.restic.driver import CONTENT, TREE

RESTORE: Final = ".restore-"


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

    def work(self, job_id: int) -> Path:
        return self.backups / "work" / str(job_id)

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

    def make_staging(self, job_id: int) -> Path:
        staging = self.staging(job_id)
        staging.mkdir(mode=0o700)
        return staging

    def remove_work(self, job_id: int) -> None:
        """Both folders, with all that is in them. Nobody but root has changed them, so nothing there leads away."""
        for folder in (self.work(job_id), self.staging(job_id)):
            if folder.exists():
                shutil.rmtree(folder)

    def remove_repository(self, repository_id: UUID) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.repository(repository_id))
        self.manifest(repository_id).unlink(missing_ok=True)

    def left_over(self) -> list[int]:
        """The jobs whose folders are there."""
        work = _names(self.backups / "work")
        staging = [name.removeprefix(RESTORE) for name in _names(self.folders.sites) if name.startswith(RESTORE)]
        return sorted({int(name) for name in (*work, *staging) if name.isdigit()})

    def free_bytes(self) -> int:
        space = os.statvfs(self.backups)
        return space.f_bavail * space.f_frsize


def write_secret(file: Path, secret: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as opened:
        opened.write(secret)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
