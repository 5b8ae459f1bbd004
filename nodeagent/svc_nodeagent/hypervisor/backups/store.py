"""Where the copies of one machine are: a restic repository of its own, below the folder that an administrator gave.

    backups/machines/<vm_id>/    the repository; of each copy one snapshot a disk, tagged with the copy's id

Invariants: nothing is written where `backups/machines` is not there: the administrator makes it once on the file system
that is mounted at `backups`, so a file system that is not mounted takes no copies; nor is anything written beneath one
that goes away meanwhile, where restic would make the folders anew: it goes by the opened folder. The repository is
encrypted with the controller's key, which passes to restic in its environment and never onto a disk of the host. What
reads takes no lock, which a full target could not hold, so nobody prunes meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.verification import set_aside_damaged
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.programs import ENVIRONMENT, ProgramFailed
from svc_nodeagent.protocol import FailureCode

log = structlog.get_logger(__name__)
_LOOK_SECONDS = 120.0
_PRUNE_SECONDS = 3600.0
_MOST_ERROR_BYTES = 4_096
_RESTIC = "restic"
_FULL = ("no space left on device", "disk quota exceeded")
"""As restic writes ENOSPC and EDQUOT."""
_LOST = ("packs from index missing", "index is not complete")
"""As restic 0.14 refuses to prune where data is missing."""
PACKAGES = {"restic": "restic", "nbdcopy": "libnbd-bin"}
"""The programs that copies are made with and a node may be without, each with the package that has it."""


@dataclass(frozen=True)
class Snapshot:
    """The content of one disk in one copy."""

    id: str
    copy_id: UUID
    disk: str


class MachineStore:
    """`folder` is `backups/machines`."""

    def __init__(self, folder: Path, vm_id: UUID, password: str) -> None:
        self._folder = folder
        self._repository = folder / str(vm_id)
        self._environment = ENVIRONMENT | {"RESTIC_PASSWORD": password, "GOMAXPROCS": "2"}

    async def prepare(self) -> None:
        """Make the repository, if there is none, and unlock it. Raises `HostError(conflict)` where the target is not
        there."""
        _require_programs()
        await _require_target(self._folder)
        if not await trio.Path(self._repository / "config").exists():
            await self._run("init", timeout=_LOOK_SECONDS)
        await self.unlock()

    async def unlock(self) -> None:
        """Take away the locks of programs that have died, as those of an agent that was killed have."""
        _require_programs()
        await _require_target(self._folder)
        if await trio.Path(self._repository / "config").exists():
            await self._run("unlock", timeout=_LOOK_SECONDS)

    async def snapshots(self) -> list[Snapshot]:
        """Raises `HostError(conflict)` where the target is not there, `HostError(not_found)` where it has no copies."""
        _require_programs()
        await _require_target(self._folder)
        if not await trio.Path(self._repository / "config").exists():
            raise HostError(FailureCode.NOT_FOUND, "The target has no backup of this machine.")
        listed = json.loads(await self._run("snapshots", "--no-lock", "--json", timeout=_LOOK_SECONDS)) or []
        return [
            Snapshot(entry["id"], UUID(entry["tags"][0]), entry["paths"][0].removeprefix("/"))
            for entry in listed
            if len(entry.get("tags") or ()) == 1
        ]

    @asynccontextmanager
    async def writer(self, copy_id: UUID, disk: str) -> AsyncIterator[trio.abc.SendStream]:
        """A stream whose bytes are the disk's content. It is kept once the block has ended without an error; a block
        that fails leaves no snapshot, and bytes for `prune`. Raises `HostError` where restic fails."""
        arguments = ("backup", "--quiet", "--stdin", "--stdin-filename", disk, "--tag", str(copy_id), "--host", "svc")
        with _target_may_be_full():
            async with (
                self._opened() as folder,
                fed(self._command(folder, arguments), self._environment, pass_fds=(folder,)) as sink,
            ):
                yield sink

    @asynccontextmanager
    async def reader(self, snapshot: Snapshot) -> AsyncIterator[trio.abc.ReceiveStream]:
        """The disk's content. Raises `HostError` at the block's end where restic could not read all of it."""
        arguments = ("dump", "--no-lock", "--quiet", snapshot.id, snapshot.disk)
        try:
            async with self._opened() as folder:
                command = self._command(folder, arguments)
                async with program(command, self._environment, stdout=subprocess.PIPE, pass_fds=(folder,)) as process:
                    assert process.stdout is not None
                    yield process.stdout
        except ProgramFailed as failed:
            if failed.program != _RESTIC:
                raise
            raise HostError(
                FailureCode.HOST,
                f"The target did not give back all of {snapshot.disk} of the copy; nothing was changed."
                f" {failed.message}",
                "The target is away, or has lost or changed data: see to it, or restore another copy.",
            ) from failed

    async def size(self) -> int:
        """Bytes that the repository takes at the target."""
        return await in_thread(_size, self._repository)

    async def forget(self, snapshots: Iterable[Snapshot]) -> None:
        """Remove snapshots; their bytes stay until `prune`."""
        ids = [snapshot.id for snapshot in snapshots]
        if ids:
            await self._run("forget", "--quiet", *ids, timeout=_LOOK_SECONDS)

    async def prune(self) -> bool:
        """Remove the bytes that no snapshot needs, those of copies that were cut short among them. False where the
        target has lost something that a snapshot needs: then nothing is removed."""
        try:
            await self._run("prune", "--quiet", timeout=_PRUNE_SECONDS)
        except ProgramFailed as failed:
            if not any(words in failed.error for words in _LOST):
                raise
            log.error("backup.data_lost", repository=str(self._repository), why=failed.message)
            return False
        return True

    async def verify(self, share: int) -> bool:
        """Read a part of the data, and set aside what is not what it was: whether there was nothing."""
        damaged = await set_aside_damaged(self._repository, share)
        for name in damaged:
            log.error("backup.data_changed", repository=str(self._repository), file=name)
        return not damaged

    async def strike_off_lost(self) -> None:
        """Take what the target has lost out of the index, so that the next copy brings it again."""
        await self._run("rebuild-index", "--quiet", timeout=_PRUNE_SECONDS)

    async def _run(self, *arguments: str, timeout: float) -> bytes:
        output = bytearray()
        with _target_may_be_full(), trio.move_on_after(timeout) as deadline:
            async with self._opened() as folder:
                command = self._command(folder, arguments)
                async with program(command, self._environment, stdout=subprocess.PIPE, pass_fds=(folder,)) as process:
                    assert process.stdout is not None
                    async for piece in process.stdout:
                        output += piece
        if deadline.cancelled_caught:
            raise HostError(FailureCode.TIMED_OUT, f"restic {arguments[0]} did not end within {timeout:g} s.")
        return bytes(output)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[int]:
        """A descriptor of the folder at the target. Raises `HostError(conflict)` where there is none."""
        try:
            folder = await in_thread(os.open, self._folder, os.O_PATH | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise _no_target(self._folder) from error
        try:
            yield folder
        finally:
            os.close(folder)

    def _command(self, folder: int, arguments: Sequence[str]) -> list[str]:
        return [_RESTIC, "--no-cache", "--repo", f"/proc/self/fd/{folder}/{self._repository.name}", *arguments]


async def remove_store(folder: Path, vm_id: UUID) -> None:
    """Remove a machine's repository below `folder`, or what an interrupted removal has left of it. Raises
    `HostError(conflict)` where the target is not there: then nothing says that the repository is gone."""
    await _require_target(folder)
    with contextlib.suppress(FileNotFoundError):
        await in_thread(shutil.rmtree, folder / str(vm_id))


def missing_programs() -> list[str]:
    return [name for name in PACKAGES if shutil.which(name, path=ENVIRONMENT["PATH"]) is None]


def _require_programs() -> None:
    if missing := missing_programs():
        raise HostError(
            FailureCode.CONFLICT,
            f"This node can neither back machines up nor restore them: not installed: {', '.join(missing)}.",
            f"Install on the node: {', '.join(PACKAGES[name] for name in missing)}.",
        )


async def _require_target(folder: Path) -> None:
    if not await trio.Path(folder).is_dir():
        raise _no_target(folder)


def _no_target(folder: Path) -> HostError:
    return HostError(
        FailureCode.CONFLICT,
        f"This node has no target for backups: there is no {folder}.",
        "Mount the target there, and make the folder `machines` in it once (docs/machine-backups.md).",
    )


@contextlib.contextmanager
def _target_may_be_full() -> Iterator[None]:
    """Raises `HostError(capacity)` in the place of what restic says of a file system that takes no more."""
    try:
        yield
    except ProgramFailed as failed:
        if not any(words in failed.error for words in _FULL):
            raise
        raise HostError(
            FailureCode.CAPACITY,
            "The target for backups is full; the backups that are there were left as they are.",
            "The provider makes room at the target, or has fewer backups kept.",
        ) from failed


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@asynccontextmanager
async def program(
    command: Sequence[str | Path],
    environment: dict[str, str] = ENVIRONMENT,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> AsyncIterator[trio.Process]:
    """Run a program for the length of the block, then wait for its end; a block that raises kills it. Raises
    `ProgramFailed` when it ends with another status than 0."""
    # A file rather than a pipe: nobody has to read it, and a program that says much does not wait for that.
    with tempfile.TemporaryFile() as said:
        process = await trio.lowlevel.open_process(
            [str(argument) for argument in command],
            stdin=stdin,
            stdout=stdout,
            stderr=said,
            env=environment,
            pass_fds=pass_fds,
        )
        try:
            yield process
            await process.wait()
        except BaseException:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            raise
        finally:
            with trio.CancelScope(shield=True):
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()
        if process.returncode != 0:
            said.seek(0)
            words = said.read(_MOST_ERROR_BYTES).decode(errors="replace")
            raise ProgramFailed(str(command[0]), process.returncode or 0, words)


@asynccontextmanager
async def fed(
    command: Sequence[str | Path], environment: dict[str, str] = ENVIRONMENT, *, pass_fds: Sequence[int] = ()
) -> AsyncIterator[trio.abc.SendStream]:
    """As `program`, of one that reads what the block writes. One that ends too early says why itself."""
    async with program(command, environment, stdin=subprocess.PIPE, pass_fds=pass_fds) as process:
        assert process.stdin is not None
        try:
            yield process.stdin
        except trio.BrokenResourceError:
            log.info("program.closed_its_input", program=str(command[0]))
        await process.stdin.aclose()
