"""Stores manifests: one restic repository at each target, `svc-recovery`, for all servers that copy there.

restic is used because it can reach every kind of target already. The repository's password is public, because manifests
have to be written without the recovery key, even to a target that is added later. Each manifest has its own encryption.
Tags name its server and its time, so that manifests can be listed.

Invariant: anybody who may write to a target may write anything into this repository, so nothing in it is trusted. Tags
of another form are skipped, reads are bounded, and a manifest that opens has to agree with its tags.
"""

from __future__ import annotations

import re
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.places import Places, write_secret
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.recovery.manifest import DamagedManifest
from svc_actors.sealing import Sealer
from svc_common.errors import unavailable
from svc_webhost.programs import ExitedError, Program, run_program
from svc_webhost.restic import NoRepositoryError, Repository, Restic, Snapshot
from svc_webhost.tree_removal import remove_tree

REPOSITORY: Final = "svc-recovery"
_PASSWORD: Final = "svc-recovery"  # noqa: S105 - the manifests in it have their own encryption
_FILE: Final = "manifest.svc"
# The most bytes of a file that restic restores: without a limit a forged snapshot could fill the disk.
_MOST_BYTES: Final = 1 << 30
_SERVER, _HOST, _AT, _KEY, _TARGET = "server-", "host-", "at-", "key-", "target-"
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
# The name is shown in terminals: a forged tag must not contain control codes.
_HOSTNAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
# Retention: the newest ten manifests, and the newest of each of 14 days.
_KEPT_NEWEST: Final = 10
_KEPT_DAYS: Final = 14
_SPARE: Final = 10
"""How many superfluous manifests may accumulate before any is removed: each removal makes restic read the whole
repository."""


@dataclass(frozen=True)
class StoredManifest:
    """A manifest at a target. `target_id` is the id that its server gave the target."""

    snapshot: str
    server: UUID
    hostname: str
    taken_at: datetime
    key: str
    target_id: UUID

    @property
    def tags(self) -> tuple[str, ...]:
        at = self.taken_at.astimezone(UTC).strftime(_TIME)
        return (
            f"{_SERVER}{self.server}",
            f"{_HOST}{self.hostname}",
            f"{_AT}{at}",
            f"{_KEY}{self.key}",
            f"{_TARGET}{self.target_id}",
        )


@dataclass(frozen=True)
class Programs:
    """Runs programs outside of jobs. They end with the core. `most_bytes`: the longest file that they may write."""

    most_bytes: int | None = None

    async def __call__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: Path | None = None,
        read: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None:
        last = ""

        async def take(lines: list[str]) -> None:
            nonlocal last
            last = next((line for line in reversed(lines) if line.strip()), last)
            if read is not None:
                await read(lines)

        status = 0
        bounded = () if self.most_bytes is None else ("prlimit", f"--fsize={self.most_bytes}")
        with trio.move_on_after(seconds) as deadline:
            status = await run_program(Program((*bounded, *command), environment or {}, folder, stdin), take)
        if deadline.cancelled_caught:
            raise unavailable(f"{Path(command[0]).name} took longer than {seconds:g} seconds and was stopped.")
        if status != 0:
            raise ExitedError(status, f"{Path(command[0]).name} failed: {last}"[:500])


@dataclass(frozen=True)
class Remote:
    """Manifests at targets. Every method raises ServiceError if a target does not answer."""

    restic: Restic
    places: Places
    sealer: Sealer

    @asynccontextmanager
    async def work(self) -> AsyncIterator[Path]:
        """A temporary folder that only root can read; it exists during the block."""

        def make() -> Path:
            folder = self.places.backups / "recovery"
            for each in (self.places.backups, folder):
                each.mkdir(mode=0o700, exist_ok=True)
            made = Path(tempfile.mkdtemp(dir=folder))
            write_secret(made / "password", _PASSWORD)
            return made

        folder = await trio.to_thread.run_sync(make)
        try:
            yield folder
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(remove_tree, folder, ignore_errors=True))

    async def clear(self) -> None:
        """Removes folders that a killed core has left."""
        left = self.places.backups / "recovery"
        await trio.to_thread.run_sync(partial(remove_tree, left, ignore_errors=True))

    async def list_manifests(self, target: TargetRow) -> list[StoredManifest]:
        """The newest first. Empty for a target without manifests."""
        async with self.work() as work:
            return _manifests_of(await self._snapshots(target.repository(REPOSITORY, work, self.sealer)))

    async def write(self, target: TargetRow, stored: StoredManifest, manifest: bytes) -> None:
        """Write the manifest, and remove older ones. All manifests of another key are removed."""
        async with self.work() as work:
            repository = target.repository(REPOSITORY, work, self.sealer)
            run = Programs()
            try:
                await self.restic.snapshots(run, repository)
                # A core that was killed may have left a lock, which would prevent the removal of old manifests below.
                await self.restic.unlock(run, repository)
            except NoRepositoryError:
                await self.restic.init(run, repository)
            file = work / _FILE
            await trio.to_thread.run_sync(file.write_bytes, manifest)
            snapshot = await self.restic.keep_file(run, repository, file, stored.tags)
            there = _manifests_of(await self.restic.snapshots(run, repository))
            # Checked before any older manifest is removed. restic reports only the beginning of the id.
            if not any(each.snapshot.startswith(snapshot) for each in there):
                raise unavailable(
                    "The manifest was written, but is not at the target.", hint="Check the disk of the target."
                )
            if superfluous := _superfluous([each for each in there if each.server == stored.server], stored.key):
                await self.restic.forget(run, repository, superfluous)

    async def read(self, target: TargetRow, snapshot: str) -> bytes:
        """The encrypted manifest. Also raises DamagedManifest."""
        async with self.work() as work:
            repository = target.repository(REPOSITORY, work, self.sealer)
            into = work / "read"
            await trio.to_thread.run_sync(into.mkdir)
            await self.restic.restore(Programs(_MOST_BYTES), repository, snapshot, into, _FILE)

            def read_file() -> bytes:
                file = into / _FILE
                # A forged snapshot may contain a link under this name, to any file that root can read.
                try:
                    is_file = stat.S_ISREG(file.lstat().st_mode)
                except FileNotFoundError:
                    is_file = False
                if not is_file:
                    raise DamagedManifest("There is no manifest in this snapshot.")
                return file.read_bytes()

            return await trio.to_thread.run_sync(read_file)

    async def _snapshots(self, repository: Repository) -> list[Snapshot]:
        try:
            return await self.restic.snapshots(Programs(), repository)
        except NoRepositoryError:
            return []


def _manifests_of(snapshots: Sequence[Snapshot]) -> list[StoredManifest]:
    found = []
    for snapshot in snapshots:
        said = {
            prefix: next((tag[len(prefix) :] for tag in snapshot.tags if tag.startswith(prefix)), "")
            for prefix in (_SERVER, _HOST, _AT, _KEY, _TARGET)
        }
        if not _HOSTNAME.fullmatch(said[_HOST]) or not _FINGERPRINT.fullmatch(said[_KEY]):
            continue  # The snapshot was not written by a panel.
        try:
            found.append(
                StoredManifest(
                    snapshot=snapshot.id,
                    server=UUID(said[_SERVER]),
                    hostname=said[_HOST],
                    taken_at=datetime.strptime(said[_AT], _TIME).replace(tzinfo=UTC),
                    key=said[_KEY],
                    target_id=UUID(said[_TARGET]),
                )
            )
        except ValueError:
            continue
    return sorted(found, key=lambda kept: kept.taken_at, reverse=True)


def _superfluous(there: Sequence[StoredManifest], key: str) -> list[str]:
    """The manifests of one server that may be removed. `there`: all of them, the newest first."""
    # The former key was rotated because it is lost or somebody else has it: manifests that it opens are removed at once
    # and do not accumulate.
    with_key = [kept for kept in there if kept.key == key]
    of_another = [kept.snapshot for kept in there if kept.key != key]
    days: dict[object, str] = {}
    for kept in with_key:
        days.setdefault(kept.taken_at.astimezone(UTC).date(), kept.snapshot)
    stay = {kept.snapshot for kept in with_key[:_KEPT_NEWEST]} | set(list(days.values())[:_KEPT_DAYS])
    old = [kept.snapshot for kept in with_key if kept.snapshot not in stay]
    return of_another + old if of_another or len(old) >= _SPARE else []
