"""restic as a test plays it: snapshots are trees beside the repository, made and compared by the real manifest code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import trio

from svc_common.errors import ErrorCode, unavailable
from svc_webhost.restic import (
    BackupEnded,
    DamagedDataError,
    NoRepositoryError,
    Repository,
    Run,
    Scanned,
    Snapshot,
    Verified,
)
from svc_webhost.restic import manifest as manifests
from svc_webhost.restic.driver import CONTENT, MANIFEST_PATH
from svc_webhost.restic.models import Settled
from tests.support.panel_sites import nothing

PACK: Final = "5f" * 32


@dataclass
class RecordedRestic:
    """Repositories that are there because it says so. `before` is called before each command with its name and its
    repository: a test lets it fail, or stops there. `damage` is called with what was restored. `busy`: sites are
    changed while they are backed up. `read`: the parts whose data was read, in order; `rotten`: the damaged
    ones, of which it says `says`."""

    repositories: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)
    times: dict[str, datetime] = field(default_factory=dict)
    before: Callable[[str, str], Awaitable[None]] = field(default=lambda command, location: nothing())
    damage: Callable[[Path], None] = field(default=lambda tree: None)
    busy: bool = False
    read: list[tuple[str, int, int]] = field(default_factory=list)
    rotten: set[tuple[str, int]] = field(default_factory=set)
    says: str = f"restic names the pack {PACK}"

    async def scan(self, run: Run, home: Path, work: Path, uid: int, before: Path | None) -> Scanned:
        await self.before("scan", "")
        told = await trio.to_thread.run_sync(
            partial(
                manifests.scan,
                str(home),
                uid,
                str(before) if before else None,
                str(work / MANIFEST_PATH),
                str(work / "excluded"),
            )
        )
        return Scanned.model_validate(told)

    async def init(self, run: Run, repository: Repository, like: Repository | None = None) -> None:
        await self.before("init", repository.location)
        assert (repository.password_file.stat().st_mode & 0o777) == 0o400
        self.repositories[repository.location] = {}
        if repository.location.startswith("/"):
            folder = Path(repository.location)
            folder.mkdir(parents=True)
            (folder / "config").touch()

    async def unlock(self, run: Run, repository: Repository) -> None:
        await self.before("unlock", repository.location)

    async def snapshots(self, run: Run, repository: Repository) -> list[Snapshot]:
        await self.before("snapshots", repository.location)
        if repository.location not in self.repositories:
            raise NoRepositoryError(ErrorCode.UNAVAILABLE, "there is no repository")
        return [
            Snapshot(id=name, tags=tags, time=self.times.get(name))
            for name, tags in self.repositories[repository.location].items()
        ]

    async def backup(
        self,
        run: Run,
        repository: Repository,
        home: Path,
        work: Path,
        tags: Sequence[str],
        parent: str | None,
        progress: Callable[[float], Awaitable[None]],
    ) -> BackupEnded:
        await self.before("backup", repository.location)
        name = uuid4().hex
        listed = list(manifests.read(str(work / MANIFEST_PATH)))
        made = work / "content"
        content = {str(path.relative_to(work)): path.read_bytes() for path in made.rglob("*") if path.is_file()}
        files = {entry["p"]: (home / entry["p"]).read_bytes() for entry in listed if entry["t"] == "f"}
        self.times[name] = datetime.now(UTC)
        self.trees[name] = {"listed": listed, "files": files, "content": content}
        self.repositories[repository.location][name] = tuple(tags)
        size = sum(map(len, files.values()))
        return BackupEnded(
            snapshot_id=name, total_files_processed=len(files), total_bytes_processed=size, data_added=size
        )

    async def settle(
        self, run: Run, repository: Repository, snapshot: str, home: Path, work: Path, uid: int
    ) -> Settled:
        await self.before("settle", repository.location)
        shutil.copyfile(work / MANIFEST_PATH, work / "manifest")
        files = self.trees[snapshot]["files"]
        return Settled(files=len(files), bytes=sum(map(len, files.values())), changed=0, exact=not self.busy)

    async def keep_file(self, run: Run, repository: Repository, file: Path, tags: Sequence[str]) -> str:
        name = uuid4().hex
        self.trees[name] = {"file": (file.name, file.read_bytes())}
        self.repositories[repository.location][name] = tuple(tags)
        return name

    async def check(self, run: Run, repository: Repository) -> None:
        await self.before("check", repository.location)

    async def read_data(self, run: Run, repository: Repository, part: int, parts: int, cache: Path | None) -> None:
        await self.before("read_data", repository.location)
        assert (cache is None) == repository.is_local
        self.read.append((repository.location, part, parts))
        if (repository.location, part) in self.rotten:
            raise DamagedDataError(self.says, [PACK] if PACK in self.says else ())

    async def tag(self, run: Run, repository: Repository, snapshots: Sequence[str], tag: str) -> None:
        for name in snapshots:
            self.repositories[repository.location][name] += (tag,)

    async def copy(self, run: Run, source: Repository, target: Repository, snapshots: Sequence[str]) -> None:
        await self.before("copy", target.location)
        for name in snapshots:
            self.repositories[target.location][name] = self.repositories[source.location][name]

    async def forget(self, run: Run, repository: Repository, snapshots: Sequence[str]) -> None:
        await self.before("forget", repository.location)
        for name in snapshots:
            del self.repositories[repository.location][name]

    async def restore(self, run: Run, repository: Repository, snapshot: str, target: Path, *paths: str) -> None:
        await self.before("restore", repository.location)
        kept = self.trees[snapshot]
        if "file" in kept:
            name, content = kept["file"]
            (target / name).write_bytes(content)
            return

        def wanted(name: str) -> bool:
            return not paths or any(name == path or name.startswith(f"{path}/") for path in paths)

        for name, content in kept["content"].items():
            if wanted(name):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(content)
        tree = target / "site"
        tree.mkdir()
        for entry in kept["listed"]:
            inside, placed = f"site/{entry['p']}", tree / entry["p"]
            if not wanted(inside):
                continue
            placed.parent.mkdir(parents=True, exist_ok=True)
            match entry["t"]:
                case "d":
                    placed.mkdir(exist_ok=True)
                case "l":
                    placed.symlink_to(entry["l"])
                case "f":
                    placed.write_bytes(kept["files"][entry["p"]])
        if not paths or any(not path.startswith(CONTENT) for path in paths):
            self.damage(tree)

    async def verify(self, run: Run, tree: Path, listed: Path, below: str, uid: int, gid: int) -> Verified:
        await self.before("verify", "")
        told = await trio.to_thread.run_sync(manifests.verify, str(tree), str(listed), below, uid, gid)
        return Verified.model_validate(told)

    def held(self, location: str) -> list[tuple[str, ...]]:
        """The tags of the snapshots in a repository."""
        return sorted(self.repositories.get(location, {}).values())


def failing(wanted: str, *, at: str = "") -> Callable[[str, str], Awaitable[None]]:
    """A `before` by which one command fails, of repositories whose location begins with `at`."""

    async def before(command: str, location: str) -> None:
        if command == wanted and location.startswith(at):
            raise unavailable(f"restic {command} failed: the disk says no", hint=json.dumps(None))

    return before
