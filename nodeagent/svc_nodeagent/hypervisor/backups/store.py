"""The copies of one machine: a restic repository of its own at a place (`places`), with one snapshot for each disk of a
copy, tagged with the copy's id and what it stands on (`chains`).

Invariants: the repository is encrypted with the controller's key, which is passed to restic in its environment and
never written to a disk of the host. Reading takes no lock, since a full target could not store the lock; so the store
must not be pruned while it is read. Every request to a place that is not on the node has a deadline, or must make
progress.

Rejected: images by `qemu-img convert`. It is faster than restic (1.4 s for 4 GiB with 600 MiB of content, compressed 24
s, where restic takes 19 s encrypted), but stores the whole disk again each time; restic took 4 MiB for the next copy.
Nothing in Debian 12 both deduplicates and takes a dirty bitmap, so `copying` reads the bitmap and restic deduplicates.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.chains import NOTE, Snapshot, StoreListing, parse_listing, tags_of, tags_of_note
from svc_nodeagent.hypervisor.backups.first_store import LocalPlace, folder_for_a_store, send_first_files
from svc_nodeagent.hypervisor.backups.mounted import LOOK_SECONDS, STATUSES, MountedTarget
from svc_nodeagent.hypervisor.backups.places import RemotePlace, ResticAccess, without_region
from svc_nodeagent.hypervisor.backups.running import Errors, program, program_with_input
from svc_nodeagent.hypervisor.backups.verification import SHARES
from svc_nodeagent.hypervisor.programs import ENVIRONMENT, ProgramFailed
from svc_nodeagent.protocol import BackupPlace, FailureCode

log = structlog.get_logger(__name__)
PRUNE_SECONDS: Final = 3600.0
STALLED_SECONDS: Final = 300.0
"""A remote target that takes or returns nothing for this long is given up."""
MOST_OUTPUT: Final = 64 * 1024 * 1024
"""The most bytes that restic may print. The longest output is the list of copies: some 500 bytes for each disk of a
copy."""
MOST_MEMORY: Final = min(4 * 1024**3, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
"""The most bytes of memory of one restic process. Its index of a store has some 200 bytes for each piece of about a
MiB, and a prune holds the index twice: with 4 GiB it can prune stores of some TiB. This also ends the endless listing
of a hostile bucket, from which restic grew by 11 MiB/s."""
_RESTIC: Final = "restic"
_LOST: Final = ("packs from index missing", "index is not complete", "unable to load a tree")
"""The words with which restic 0.14 refuses to prune when data is missing."""
_NO_STORE: Final = re.compile(
    r"unable to open config file: .*(key does not exist|file does not exist|no such file or directory)"
)
_REFUSED: Final = "access denied"
PACKAGES = {"restic": "restic", "nbdcopy": "libnbd-bin"}
"""The programs that backups need and that may be missing on a node, each with its package."""


class Sink:
    """Takes the content of a disk. `added`: how many bytes the store did not have, known once the block has ended."""

    def __init__(self, stream: trio.abc.SendStream, patience: trio.CancelScope) -> None:
        self._stream = stream
        self._patience = patience
        self.added = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        # The deadline runs only while restic does not accept data. The time between two calls is that of the disk and
        # does not count.
        self._patience.deadline = trio.current_time() + STALLED_SECONDS
        await self._stream.send_all(data)
        self._patience.deadline = math.inf


class MachineStore:
    def __init__(self, place: MountedTarget | RemotePlace | LocalPlace, password: str) -> None:
        self._place = place
        self._environment = ENVIRONMENT | {
            "RESTIC_PASSWORD": password,
            "GOMAXPROCS": "2",
            # Go then collects garbage earlier, before restic reaches the limit.
            "GOMEMLIMIT": str(MOST_MEMORY * 3 // 4),
        }

    async def prepare(self) -> None:
        """Unlock the repository, or create it if there is none. Raises `HostError` if the target cannot be reached."""
        _require_programs()
        if await self._asked("unlock") is not None:
            return
        if not isinstance(self._place, RemotePlace) or not self._place.is_bound:
            await self._run("init", timeout=LOOK_SECONDS)
            return
        # With a key that opens only one machine's folder, `init` fails, so the repository is created here first: see
        # `first_store`.
        async with folder_for_a_store() as here:
            await MachineStore(here, self._environment["RESTIC_PASSWORD"])._run("init", timeout=LOOK_SECONDS)
            await send_first_files(here, self._place)

    async def unlock(self) -> None:
        """Remove the locks of programs that have died, such as those of an agent that was killed."""
        _require_programs()
        await self._asked("unlock")

    async def listing(self) -> StoreListing:
        """The snapshots that the target has. Raises `HostError` if the target cannot be reached, and
        `HostError(not_found)` if it has no store of the machine."""
        _require_programs()
        listed = await self._asked("snapshots", "--no-lock", "--json")
        if listed is None:
            raise HostError(FailureCode.NOT_FOUND, "The target has no backup of this machine.")
        return parse_listing(
            (each["id"], each.get("tags") or (), each["paths"][0]) for each in json.loads(listed) or ()
        )

    @asynccontextmanager
    async def writer(self, copy_id: UUID, disk: str, on: UUID | None = None) -> AsyncIterator[Sink]:
        """A sink for the disk's content, or for what has changed in it since the copy `on`. The snapshot is stored once
        the block has ended without an error; a block that fails leaves no snapshot, but bytes that `prune` removes.
        Raises `HostError` if restic fails."""
        async with self._writer(disk, tags_of(copy_id, on)) as sink:
            yield sink

    @asynccontextmanager
    async def _writer(self, name: str, tags: Sequence[str]) -> AsyncIterator[Sink]:
        tagged = [argument for tag in tags for argument in ("--tag", tag)]
        arguments = ("backup", "--json", "--stdin", "--stdin-filename", name, *tagged, "--host", "svc")
        with Errors() as told, Errors() as errors, self._in_its_terms(), self._patience(errors) as patience:
            async with self._place.reached() as way:
                command, environment = self._command(way, arguments)
                feeding = program_with_input(
                    command,
                    environment,
                    stdout=told.file.fileno(),
                    most_memory=MOST_MEMORY,
                    name=_RESTIC,
                    quiet=True,
                    errors=errors,
                )
                async with feeding as stream:
                    sink = Sink(stream, patience)
                    yield sink
                    # The input has ended: restic now writes its last packs and the index, which may take long.
                    patience.deadline = trio.current_time() + PRUNE_SECONDS
            sink.added = _added(told.last())

    @asynccontextmanager
    async def reader(self, snapshot: Snapshot) -> AsyncIterator[trio.abc.ReceiveStream]:
        """The disk's content. Raises `HostError` at the block's end if restic could not read all of it."""
        arguments = ("dump", "--no-lock", "--quiet", snapshot.id, snapshot.disk)
        try:
            with Errors() as errors, self._patience(errors) as patience:
                async with self._place.reached() as way:
                    command, environment = self._command(way, arguments)
                    reading = program(
                        command,
                        environment,
                        stdout=subprocess.PIPE,
                        most_memory=MOST_MEMORY,
                        name=_RESTIC,
                        quiet=True,
                        errors=errors,
                    )
                    async with reading as process:
                        assert process.stdout is not None
                        yield _Source(process.stdout, patience)
        except ProgramFailed as failed:
            if failed.program != _RESTIC:
                raise
            if isinstance(self._place, MountedTarget) and failed.status in STATUSES:
                raise self._place.failure(failed) from failed
            raise HostError(
                FailureCode.HOST,
                f"The target did not return all of {snapshot.disk} of the backup; nothing was changed. "
                f"{failed.message}",
                "The target does not respond, or has lost or changed data: check it, or restore another backup.",
            ) from failed

    async def forget(self, snapshots: Iterable[Snapshot]) -> None:
        """Remove snapshots; their bytes stay until `prune`."""
        ids = [snapshot.id for snapshot in snapshots]
        if ids:
            await self._run("forget", "--quiet", *ids, timeout=LOOK_SECONDS)

    async def forget_copies(self, copies: Collection[UUID], there: StoreListing | None = None) -> bool:
        """Remove copies, and dropped ones that no copy needs now; a copy on which others stand is dropped instead.
        Returns whether there is something to prune. `there`: what the target has, if the caller knows."""
        there = await self.listing() if there is None else there
        gone, dropped = there.without(copies)
        notes = there.notes
        # A note is written only if it says something new; several notes (from interrupted runs) become one.
        if dropped != there.dropped or len(notes) > 1:
            if dropped:
                async with self._writer(NOTE, tags_of_note(dropped)) as sink:
                    await sink.send_all(NOTE.encode())  # restic does not store an empty file
        else:
            notes = ()
        # The note is written before any snapshot is removed. With the note the removal is decided: if the agent crashes
        # here, the next run removes the copies that the note names. The old notes are removed in the same call as the
        # snapshots.
        ids = [*(each.id for each in gone), *notes]
        if ids:
            await self._run("forget", "--quiet", *ids, timeout=LOOK_SECONDS)
        return bool(gone)

    async def prune(self) -> bool:
        """Remove the bytes that no snapshot needs, including those of interrupted copies. False if the target has lost
        something that a snapshot needs; then nothing is removed."""
        if not isinstance(self._place, LocalPlace):
            # Done first: on a full target there may otherwise be no room for restic's lock.
            await self._place.remove_unfinished()
        try:
            await self._run("prune", "--quiet", timeout=PRUNE_SECONDS, in_its_terms=False)
        # restic's own words are compared here: lost data is a result of this step, not a failure of the target.
        except ProgramFailed as failed:
            if not any(words in failed.error for words in _LOST):
                raise self._place.failure(failed) from failed
            log.error("backup.data_lost", repository=_named(self._place), why=failed.message)
            return False
        return True

    async def verify(self, share: int) -> bool:
        """Read a part of the data, and set aside files that have changed. Returns whether no file had. A target that is
        not on the node is not read: its traffic costs money, and it keeps digests of its own."""
        if not isinstance(self._place, MountedTarget):
            return True
        damaged = await self._place.set_aside_damaged(share, SHARES)
        for each in damaged:
            log.error("backup.data_changed", repository=_named(self._place), file=each.file, why=each.why)
        return not damaged

    async def strike_off_lost(self) -> None:
        """Remove from the index what the target has lost, so that the next copy stores it again."""
        await self._run("rebuild-index", "--quiet", timeout=PRUNE_SECONDS)

    async def remove(self) -> None:
        """Remove the store, or what an interrupted removal has left of it; at a target that is not on the node, its
        empty folders stay. Raises `HostError` if the target cannot be reached: then it is not known that the copies are
        gone."""
        if isinstance(self._place, MountedTarget):
            await self._place.remove()
            return
        if await self._asked("unlock") is None:
            return
        listed = await self._run("snapshots", "--no-lock", "--json", timeout=LOOK_SECONDS)
        if kept := json.loads(listed):
            await self._run("forget", "--quiet", *(entry["id"] for entry in kept), timeout=PRUNE_SECONDS)
        if not await self.prune():
            await self.strike_off_lost()
            await self.prune()

    async def _asked(self, *arguments: str) -> bytes | None:
        """What restic prints about the store; None if there is certainly no store. It must be certain, because for None
        `prepare` creates a store and `remove` reports that the store is removed."""
        if isinstance(self._place, MountedTarget):
            look = await self._place.look()
            if not look.there:
                return None
            # Most stores are not locked; for these this saves a start of restic.
            if arguments == ("unlock",) and not look.locked:
                return b""
            return await self._run(*arguments, timeout=LOOK_SECONDS)
        assert isinstance(self._place, RemotePlace)
        try:
            return await self._run(*arguments, timeout=LOOK_SECONDS, in_its_terms=False)
        except ProgramFailed as failed:
            why = failed
        # A bucket's first answer does not say why it refuses; asked without a region, it does (`without_region`). A key
        # that may list only one folder gets the same refusal for a missing file: then the list of that folder decides.
        if not self._place.explains:
            try:
                await self._run("cat", "config", timeout=LOOK_SECONDS, in_its_terms=False, plainly=True)
            except ProgramFailed as failed:
                why = failed
            if self._place.is_bound and _REFUSED in why.error.lower() and await self._place.lacks("config"):
                return None
        if _NO_STORE.search(why.error) is None:
            raise self._place.failure(why) from why
        return None

    async def _run(self, *arguments: str, timeout: float, in_its_terms: bool = True, plainly: bool = False) -> bytes:
        output = bytearray()
        translated = self._in_its_terms() if in_its_terms else contextlib.nullcontext()
        with translated, trio.move_on_after(timeout) as deadline:
            async with self._place.reached() as found:
                way = without_region(found) if plainly else found
                command, environment = self._command(way, arguments)
                running = program(
                    command, environment, stdout=subprocess.PIPE, most_memory=MOST_MEMORY, name=_RESTIC, quiet=True
                )
                async with running as process:
                    assert process.stdout is not None
                    async for piece in process.stdout:
                        output += piece
                        if len(output) > MOST_OUTPUT:
                            raise HostError(
                                FailureCode.TARGET if isinstance(self._place, RemotePlace) else FailureCode.HOST,
                                f"restic {arguments[0]} printed more than {MOST_OUTPUT // 1024**2} MiB about the "
                                "target and was stopped; the existing backups were not changed.",
                                "Check the target: it holds data that this node did not store there.",
                            )
        if deadline.cancelled_caught:
            # Here restic has taken too long in all: the helper of a mounted target notices when the target does not
            # answer.
            if isinstance(self._place, RemotePlace):
                raise self._place.failed(f"did not answer within {timeout:g} s (restic {arguments[0]})")
            raise HostError(FailureCode.TIMED_OUT, f"restic {arguments[0]} did not end within {timeout:g} s.")
        return bytes(output)

    @contextlib.contextmanager
    def _in_its_terms(self) -> Iterator[None]:
        try:
            yield
        except ProgramFailed as failed:
            if failed.program != _RESTIC:
                raise
            raise self._place.failure(failed) from failed

    @contextlib.contextmanager
    def _patience(self, errors: Errors) -> Iterator[trio.CancelScope]:
        """A cancel scope whose deadline is extended by each request to the target."""
        said = ""
        with trio.CancelScope() as scope:
            try:
                yield scope
            finally:
                said = errors.last()
        if scope.cancelled_caught:
            if isinstance(self._place, RemotePlace):
                raise self._place.failure(ProgramFailed(_RESTIC, 0, said or "it made no progress"))
            raise HostError(FailureCode.TIMED_OUT, f"The target made no progress for {STALLED_SECONDS:g} s.")

    def _command(self, way: ResticAccess, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        command = [*way.through, _RESTIC, "--no-cache", "--repo", way.location, *way.options, *arguments]
        return command, self._environment | way.environment


class _Source(trio.abc.ReceiveStream):
    def __init__(self, stream: trio.abc.ReceiveStream, patience: trio.CancelScope) -> None:
        self._stream = stream
        self._patience = patience

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        # restic keeps asking for a lost file for 15 minutes
        self._patience.deadline = trio.current_time() + 2 * STALLED_SECONDS
        piece = await self._stream.receive_some(max_bytes)
        self._patience.deadline = math.inf
        return piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def store_at(folder: Path, vm_id: UUID, password: str, place: BackupPlace | None) -> MachineStore:
    """`folder` is `backups/machines`; `place` is the operation's."""
    return MachineStore(MountedTarget(folder, vm_id) if place is None else RemotePlace(place, vm_id), password)


def missing_programs() -> list[str]:
    return [name for name in PACKAGES if shutil.which(name, path=ENVIRONMENT["PATH"]) is None]


def _require_programs() -> None:
    if missing := missing_programs():
        raise HostError(
            FailureCode.CONFLICT,
            f"This node can neither back machines up nor restore them: not installed: {', '.join(missing)}.",
            f"Install on the node: {', '.join(PACKAGES[name] for name in missing)}.",
        )


def _named(place: MountedTarget | RemotePlace | LocalPlace) -> str:
    match place:
        case MountedTarget(path=path) | LocalPlace(folder=path):
            return str(path)
        case RemotePlace(place=elsewhere, vm_id=vm_id):
            return f"{elsewhere.name}: {vm_id}"


def _added(told: str) -> int:
    """The bytes that restic says it has added, in the summary on its last line."""
    for line in reversed(told.splitlines()):
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if said.get("message_type") == "summary":
                return int(said["data_added"])
    return 0
