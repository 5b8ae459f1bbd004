"""restic's commands, each a program with an argument list, run at low priority and without a cache.

Each command takes half a second of processor time to derive the key from the password, and one that creates a
repository four times that, so no two commands are used where one will do.

The password of a repository is read from a file of root's with mode 0400. `unlock` removes locks whose process has
ended, and no others; and restic's unfinished files, which no command of its own removes. On a full target these may
take the room for a lock, without which nothing can be pruned. A restic that still writes such a file writes it again.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import trio
from pydantic import BaseModel, TypeAdapter

from svc_common.errors import ErrorCode, ServiceError, unavailable
from svc_webhost.programs import ExitedError
from svc_webhost.restic import cell, manifest
from svc_webhost.restic.models import (
    BackupEnded,
    DamagedDataError,
    NoRepositoryError,
    Repository,
    Run,
    Scanned,
    Settled,
    Snapshot,
    SnapshotIncompleteError,
    StalledError,
    Verified,
)

TREE: Final = "site"
CONTENT: Final = "content"
"""The two folders of a snapshot, and of a job's work folder: the site's home, and files made for the backup."""
MANIFEST_PATH: Final = f"{CONTENT}/manifest"
"""The path of the scan's manifest, in a snapshot and in a job's work folder alike."""
QUIET: Final = ("nice", "-n", "10", "ionice", "-c", "2", "-n", "7")
"""Visitors have priority over backups."""
QUICK_SECONDS: Final = 900.0
LONG_SECONDS: Final = 6 * 3600.0
STALLED_SECONDS: Final = 600.0
"""A backup that reads nothing for this long is stopped, and so is a copy without progress: otherwise a file that was
replaced by a pipe at the right moment, or a target that hangs, would delay everybody's backups. restic itself retries
for a quarter of an hour, whatever it does."""
ANSWER_SECONDS: Final = 120.0
"""Deadline of commands that move no data: the target hangs if they take longer."""
_INCOMPLETE: Final = "at least one source file could not be read"
_NO_REPOSITORY: Final = re.compile(
    r"unable to open config file: .*(key does not exist|file does not exist|no such file or directory)"
)
"""The messages for S3, SFTP and a folder. After every other error restic is also asked whether there is a
repository."""
_REFUSED: Final = {
    "Access Key Id you provided does not exist": "The bucket's server does not know the access key.",
    "request signature we calculated does not match": "The secret key is not the one of the access key.",
    "Access Denied": "The access key may not use the bucket, or its secret is another one.",
    "specified bucket does not exist": "There is no such bucket.",
}
"""Messages of S3 servers, and their meaning."""
_LOCKED: Final = re.compile(r"already locked.* by PID (?P<process>\d+) on (?P<host>\S+) by (?P<user>\S*)")
_LOCKED_SINCE: Final = re.compile(r"lock was created at (\S+ [0-9:]+)")
_PACK: Final = re.compile(r"(?:error: )?(?:pack|Pack ID does not match, want) ([0-9a-f]{64})\b")
_TREE: Final = re.compile(r"error for tree ([0-9a-f]{8,64}):")
_NOT_WRITTEN: Final = re.compile(
    r"  .*(ciphertext verification failed|returned invalid hash|not found in (index|repository))"
)
"""Why a tree is damaged, in the lines below it. A line of a tree that could not be fetched has other words."""
_NOT_FETCHED: Final = re.compile(r"Load\(|List\(|failed to download|download error|not referenced in any index")
_UNREADABLE: Final = re.compile(r"pack ([0-9a-f]{64}) .*input/output error")
"""Only a disk of this server says so: through SFTP and S3 such an error has other words."""
_ERRORS: Final = "repository contains errors"
"""What `restic check` writes about damage is text, and is read here. Tried with restic 0.14: packs that were
overwritten, cut and lost, overwritten trees, and a server that breaks transfers off. The sources of 0.16, 0.17 and 0.18
have the same texts, which were not tried. Exit status and last line are the same for damage and for broken transfers:
the lines before the last one count. A broken transfer names a pack, too: "failed to download" in 0.14, "partial
download error" from 0.17 on."""
_NAMED: Final = 5
LOCK_MINUTES: Final = 30
"""restic ignores a lock that was not refreshed for so long; a running restic refreshes its lock every five minutes."""
_SNAPSHOTS: Final = TypeAdapter(list[Snapshot])
_PYTHON: Final = (sys.executable, "-I", "-S")

ModelT = TypeVar("ModelT", bound=BaseModel)
Progress = Callable[[float], Awaitable[None]]


class Restic(Protocol):
    """The part of restic that backups need. Every method raises ServiceError. `work` is a folder of root's alone."""

    async def scan(self, run: Run, home: Path, work: Path, uid: int, before: Path | None) -> Scanned: ...

    async def init(self, run: Run, repository: Repository, like: Repository | None = None) -> None: ...

    async def unlock(self, run: Run, repository: Repository) -> None: ...

    async def snapshots(self, run: Run, repository: Repository) -> list[Snapshot]:
        """Raises NoRepositoryError if there is none."""
        ...

    async def backup(
        self,
        run: Run,
        repository: Repository,
        home: Path,
        work: Path,
        tags: Sequence[str],
        parent: str | None,
        progress: Progress,
    ) -> BackupEnded: ...

    async def settle(
        self, run: Run, repository: Repository, snapshot: str, home: Path, work: Path, uid: int
    ) -> Settled: ...

    async def keep_file(self, run: Run, repository: Repository, file: Path, tags: Sequence[str]) -> str: ...

    async def check(self, run: Run, repository: Repository) -> None: ...

    async def read_data(self, run: Run, repository: Repository, part: int, parts: int, cache: Path | None) -> None:
        """Raises DamagedDataError if restic says that this part of the data is damaged, while the repository opens."""
        ...

    async def tag(self, run: Run, repository: Repository, snapshots: Sequence[str], tag: str) -> None: ...

    async def copy(self, run: Run, source: Repository, target: Repository, snapshots: Sequence[str]) -> None: ...

    async def forget(self, run: Run, repository: Repository, snapshots: Sequence[str]) -> None: ...

    async def restore(self, run: Run, repository: Repository, snapshot: str, target: Path, *paths: str) -> None: ...

    async def verify(self, run: Run, tree: Path, listed: Path, below: str, uid: int, gid: int) -> Verified: ...


class SystemRestic:
    """The server's own restic."""

    async def scan(self, run: Run, home: Path, work: Path, uid: int, before: Path | None) -> Scanned:
        """List the site below `home` in `work`/content/manifest, which the snapshot includes, and left-out files in
        `work`/excluded."""
        command = _in_cell(
            home,
            work,
            *(*_PYTHON, manifest.__file__, "scan", str(work / TREE), str(uid)),
            *(str(before or ""), str(work / MANIFEST_PATH), str(work / "excluded")),
        )
        return await _told(run, command, Scanned, seconds=LONG_SECONDS)

    async def init(self, run: Run, repository: Repository, like: Repository | None = None) -> None:
        """`like`: use that repository's chunker parameters, so that copies from there share their chunks."""
        command = ["init", "--json"]
        if like is not None:
            command += ["--copy-chunker-params", *_from(like)]
        await self._run(run, repository, command)

    async def unlock(self, run: Run, repository: Repository) -> None:
        """Remove locks of processes that have ended: a killed restic leaves its lock. In a local folder restic is
        started only if there is a lock."""
        if repository.is_local and not await trio.to_thread.run_sync(_locks, repository):
            return
        await self._remove_unfinished(run, repository)
        await self._run(run, repository, ["unlock"])

    async def _remove_unfinished(self, run: Run, repository: Repository) -> None:
        """Remove restic's unfinished files. A bucket has none, since an object appears only when it is complete."""
        command: tuple[str, ...]
        stdin: Path | None = None
        if repository.is_local:
            depth = ("-mindepth", "2", "-maxdepth", "3")
            command = ("find", repository.location, *depth, "-type", "f", "-name", "*-tmp-*", "-delete")
        elif repository.sftp is not None:
            command, stdin = repository.sftp.command, repository.password_file.with_name("unfinished")
            await trio.to_thread.run_sync(stdin.write_text, _removal(repository.sftp.folder))
        else:
            return

        async def drop(_: list[str]) -> None:
            """sftp repeats each line, and names missing files."""

        # An error is ignored: the next command finds out whether the repository exists and its server answers.
        with suppress(ServiceError):
            await run((*QUIET, *command), seconds=STALLED_SECONDS, stdin=stdin, read=drop)

    async def snapshots(self, run: Run, repository: Repository) -> list[Snapshot]:
        """restic sends HEAD requests to S3, whose answers have no body: a missing bucket looks like an empty one, which
        `init` would create, and a wrong key like any refusal. Without a region it asks for that first, and gets the
        reason."""
        try:
            return await self._snapshots(run, repository)
        except (NoRepositoryError, _RefusedError):
            if not repository.explains:
                await self._snapshots(run, replace(repository, options=()))
            raise

    async def _snapshots(self, run: Run, repository: Repository) -> list[Snapshot]:
        parts: list[str] = []

        async def take(lines: list[str]) -> None:
            # The output is one line, which arrives in several pieces if it is long.
            parts.extend(line for line in lines if parts or line.startswith("["))

        await self._run(run, repository, ["snapshots", "--json", "--no-lock"], take=take)
        return _SNAPSHOTS.validate_json("".join(parts) or "[]")

    async def backup(
        self,
        run: Run,
        repository: Repository,
        home: Path,
        work: Path,
        tags: Sequence[str],
        parent: str | None,
        progress: Progress,
    ) -> BackupEnded:
        """A snapshot of `home` and of `work`/content, without the paths in `work`/excluded. Raises
        SnapshotIncompleteError if a file could not be read; the snapshot then exists, but is not a backup."""
        command = ["backup", "--json", "--host", "svc", "--exclude-file", str(work / "excluded")]
        command += [*(argument for tag in tags for argument in ("--tag", tag)), TREE, CONTENT]
        command += ["--parent", parent] if parent else ["--force"]
        summary: BackupEnded | None = None

        async def take(lines: list[str]) -> None:
            nonlocal summary
            for said in map(_object, lines):
                match said.get("message_type"):
                    case "status":
                        await progress(100 * float(said["percent_done"]))
                    case "summary":
                        summary = BackupEnded.model_validate(said)

        await self._run(
            run, repository, command, seconds=LONG_SECONDS, stalled=STALLED_SECONDS, take=take, cell=(home, work)
        )
        if summary is None:
            raise unavailable("restic did not report what it stored, so this backup does not count.")
        return summary

    async def settle(
        self, run: Run, repository: Repository, snapshot: str, home: Path, work: Path, uid: int
    ) -> Settled:
        """Write `work`/manifest, the manifest of the snapshot. If nothing has changed since the scan it is the scanned
        one, which the snapshot includes; otherwise restic lists what it has seen, which takes as long as a backup of an
        unchanged site."""
        arguments = (*_PYTHON, manifest.__file__, "compare", str(work / TREE), str(uid))
        compared = await _told(
            run,
            _in_cell(home, work, *arguments, str(work / MANIFEST_PATH), str(work / "excluded")),
            Settled,
            seconds=LONG_SECONDS,
        )
        if compared.changed == 0:
            await trio.to_thread.run_sync(shutil.copyfile, work / MANIFEST_PATH, work / "manifest")
            return compared.model_copy(update={"exact": True})
        listed = work / "nodes"
        async with await trio.open_file(listed, "w") as file:

            async def take(lines: list[str]) -> None:
                await file.write("".join(f"{line}\n" for line in lines if line.startswith("{")))

            await self._run(run, repository, ["ls", "--json", snapshot], seconds=LONG_SECONDS, take=take)
        command = (*QUIET, *_PYTHON, manifest.__file__, "settle")
        paths = (str(work / MANIFEST_PATH), str(listed), TREE, str(work / "manifest"))
        return await _told(run, (*command, *paths), Settled, seconds=LONG_SECONDS)

    async def keep_file(self, run: Run, repository: Repository, file: Path, tags: Sequence[str]) -> str:
        """A snapshot of one file of root's; returns its id."""
        summary: list[BackupEnded] = []

        async def take(lines: list[str]) -> None:
            found = [said for said in map(_object, lines) if said.get("message_type") == "summary"]
            summary.extend(map(BackupEnded.model_validate, found))

        command = ["backup", "--json", "--host", "svc", "--force", file.name]
        command += [argument for tag in tags for argument in ("--tag", tag)]
        await self._run(run, repository, command, take=take, folder=file.parent)
        return summary[-1].snapshot_id

    async def check(self, run: Run, repository: Repository) -> None:
        """Check that every snapshot has all its data."""
        await self._run(run, repository, ["check"], seconds=LONG_SECONDS)

    async def read_data(self, run: Run, repository: Repository, part: int, parts: int, cache: Path | None) -> None:
        """Read part `part` of `parts` of the packs, and compare them with their names and indexes. It takes no lock.
        `cache`: a folder for indexes and trees; without one each tree is fetched by itself.

        Damage is what restic calls damage after a first attempt that failed, while the repository opens before and
        after; whatever else fails (a timeout, a signal, a broken transfer) is another ServiceError. The second attempt
        first checks for missing packs without reading: restic before 0.17 tries for a quarter of an hour to read one.
        """
        caching = [] if cache is None else ["--with-cache", "--cache-dir", str(cache)]
        checking = ["check", "--no-lock", *caching]
        reading = [*checking, f"--read-data-subset={part}/{parts}"]
        said: list[str] = []

        async def attempt(command: Sequence[str]) -> None:
            said.clear()
            await self._run(run, repository, command, seconds=LONG_SECONDS, stalled=STALLED_SECONDS, take=take)

        async def take(lines: list[str]) -> None:
            said.extend(lines)
            del said[:-1000]

        try:
            await attempt(reading)
            return
        except (NoRepositoryError, _RefusedError):
            raise
        except ServiceError:
            await self.snapshots(run, repository)
        for command in (checking, reading):
            try:
                await attempt(command)
            except (NoRepositoryError, _RefusedError, StalledError):
                raise
            except ServiceError as error:
                damage = _damage(said, error)
                if damage is None:
                    broken = [line for line in said if _NOT_FETCHED.search(line)]
                    if not broken:
                        raise
                    raise unavailable(f"Data could not be fetched: {broken[-1]}"[:500]) from error
                await self.snapshots(run, repository)
                raise damage from error

    async def tag(self, run: Run, repository: Repository, snapshots: Sequence[str], tag: str) -> None:
        """Add `tag` to the snapshots. This changes their ids: find them by their other tags."""
        said = await self._run(run, repository, ["tag", "--add", tag, *snapshots])
        if not any(line.startswith(f"modified tags on {len(snapshots)} ") for line in said):
            raise unavailable("restic did not mark the snapshot as complete, so this backup does not count.")

    async def copy(self, run: Run, source: Repository, target: Repository, snapshots: Sequence[str]) -> None:
        command = ["copy", *_from(source), *snapshots]
        await self._run(run, target, command, seconds=LONG_SECONDS, stalled=STALLED_SECONDS)

    async def forget(self, run: Run, repository: Repository, snapshots: Sequence[str]) -> None:
        """Remove snapshots, and data that no other one needs."""
        stalled = math.inf if repository.is_local else STALLED_SECONDS
        await self._run(run, repository, ["forget", "--prune", *snapshots], seconds=LONG_SECONDS, stalled=stalled)

    async def restore(self, run: Run, repository: Repository, snapshot: str, target: Path, *paths: str) -> None:
        """Restore a snapshot, or these paths of it, below `target`, a folder of root's alone. This takes no lock, so
        that a lock which another host has left never stops a restoration; what was restored is compared with its
        manifest."""
        command = ["restore", "--no-lock", "--target", str(target), snapshot]
        for path in paths:
            command += ["--include", "/" + re.sub(r"([\\*?\[\]])", r"\\\1", path)]
        await self._run(run, repository, command, seconds=LONG_SECONDS)

    async def verify(self, run: Run, tree: Path, listed: Path, below: str, uid: int, gid: int) -> Verified:
        """Give a restored tree to the account, and compare it with its manifest."""
        arguments = ("verify", str(tree), str(listed), below, str(uid), str(gid))
        return await _told(run, (*QUIET, *_PYTHON, manifest.__file__, *arguments), Verified, seconds=LONG_SECONDS)

    async def _run(
        self,
        run: Run,
        repository: Repository,
        command: Sequence[str],
        *,
        seconds: float = QUICK_SECONDS,
        stalled: float | None = None,
        take: Callable[[list[str]], Awaitable[None]] | None = None,
        cell: tuple[Path, Path] | None = None,
        folder: Path | None = None,
    ) -> list[str]:
        """Returns the last lines of restic's output. Its failures become ServiceErrors with restic's message. It is
        stopped after `stalled` seconds without progress; by default a remote repository must answer."""
        if stalled is None:
            stalled = math.inf if repository.is_local else ANSWER_SECONDS
        said: list[str] = []
        patience = trio.CancelScope(deadline=trio.current_time() + stalled)
        place: object = None

        async def read(lines: list[str]) -> None:
            nonlocal place
            before, place = place, _place(lines[-1])
            if place != before:
                patience.deadline = trio.current_time() + stalled
            if take is not None:
                await take(lines)
            said.extend(line for line in lines if not line.startswith('{"message_type":"status"'))
            del said[:-200]

        caching = () if "--with-cache" in command else ("--no-cache",)
        restic = ("restic", *caching, *repository.options, *command)
        whole = (*QUIET, *restic) if cell is None else _in_cell(*cell, *restic)
        environment = {
            "RESTIC_REPOSITORY": repository.location,
            "RESTIC_PASSWORD_FILE": str(repository.password_file),
            "RESTIC_PROGRESS_FPS": "0.5",
            "GOMAXPROCS": "1",
            # restic's temporary files are in the job's folder, and removed with it.
            "TMPDIR": str(repository.password_file.parent),
            **repository.environment,
        }
        work = folder or (cell[1] if cell is not None else None)
        with patience:
            try:
                await run(whole, seconds=seconds, environment=environment, folder=work, read=read)
            except ServiceError as error:
                raise _failure(command[0], said, error) from error
        if patience.cancelled_caught:
            raise StalledError(
                ErrorCode.UNAVAILABLE,
                f"restic {command[0]} made no progress for {stalled:g} seconds and was stopped.",
                hint="Nothing was kept of this.",
            )
        return said


class _RefusedError(ServiceError):
    """An S3 server refuses."""


def _failure(command: str, said: Sequence[str], error: ServiceError) -> ServiceError:
    """The error with restic's own message, without the secrets of its environment."""
    plain = [line for line in said if line.strip() and not line.startswith("{")]
    if any(_INCOMPLETE in line for line in said):
        unread = [str(told.get("item", "")) for line in said if (told := _object(line)).get("message_type") == "error"]
        named = ", ".join(path.rpartition(f"/{TREE}/")[2] for path in unread[:5])
        return SnapshotIncompleteError(f"Files could not be read: {named}." if named else "Files could not be read.")
    reason = next((line for line in plain if line.startswith("Fatal")), plain[-1] if plain else error.message)
    if locked := _LOCKED.search("\n".join(plain)):
        since = _LOCKED_SINCE.search("\n".join(plain))
        return unavailable(
            f"restic {command} failed: process {locked['process']} of {locked['user']} on the host {locked['host']} "
            f"has locked the repository{f' since {since[1]}' if since else ''}. Nothing was kept of this.",
            hint=f"If it still runs, let it end. If it was killed, its lock counts for {LOCK_MINUTES} minutes after it "
            "was last refreshed: repeat this then. Backups can be restored at any time.",
        )
    if _NO_REPOSITORY.search(reason):
        return NoRepositoryError(error.code, f"restic found no repository: {reason}"[:500])
    for words, meaning in _REFUSED.items():
        if words in reason:
            return _RefusedError(error.code, f"{meaning} restic {command} failed.")
    return unavailable(f"restic {command} failed: {reason}"[:500], hint="Nothing was kept of this.")


def _damage(said: Sequence[str], error: ServiceError) -> DamagedDataError | None:
    """None if restic has not said that data is damaged."""
    exited = error.__cause__
    if not isinstance(exited, ExitedError) or exited.status != 1:
        return None
    fetched = [line for line in said if not _NOT_FETCHED.search(line)]
    if packs := sorted({found[1] for line in fetched if (found := _PACK.match(line))}):
        return DamagedDataError(f"restic names {_listed('pack', packs)}", packs)
    trees = {found[1] for line, why in pairwise(fetched) if (found := _TREE.match(line)) and _NOT_WRITTEN.match(why)}
    if trees:
        return DamagedDataError(f"restic names {_listed('tree', sorted(trees))}")
    if unreadable := sorted({found[1] for line in said if (found := _UNREADABLE.match(line))}):
        return DamagedDataError(f"the disk has input/output errors in {_listed('pack', unreadable)}")
    if len(fetched) == len(said) and any(_ERRORS in line for line in said):
        return DamagedDataError(f"restic says that the {_ERRORS}, and names no pack")
    return None


def _listed(kind: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"the {kind}{'s' if len(names) > 1 else ''} {', '.join(names[:_NAMED])}{more}"


def _place(line: str) -> object:
    """A value that changes only if restic makes progress: a status line without its time-dependent parts."""
    told = _object(line)
    if told.get("message_type") == "status":
        return told.get("bytes_done"), told.get("files_done")
    return re.sub(r"^\[[0-9:]+\] ", "", line)


def _locks(repository: Repository) -> bool:
    folder = Path(repository.location) / "locks"
    return not folder.is_dir() or any(folder.iterdir())


def _removal(folder: str) -> str:
    """Commands for sftp. "-": the next line runs even if there is no such file."""
    quoted = folder.replace("\\", "\\\\").replace('"', '\\"')
    return "\n".join((f'cd "{quoted}"', *(f"-rm {below}/*-restic-temp-*" for below in ("*", "data/*")), ""))


def _in_cell(home: Path, work: Path, *command: str) -> tuple[str, ...]:
    return (*QUIET, *_PYTHON, cell.__file__, str(home), str(work / TREE), *command)


def _from(repository: Repository) -> list[str]:
    """Options for the source repository of a command with two."""
    return ["--from-repo", repository.location, "--from-password-file", str(repository.password_file)]


async def _told(run: Run, command: Sequence[str], model: type[ModelT], *, seconds: float) -> ModelT:
    """Run one of our programs; its last line of output is the result."""
    said: list[str] = []

    async def read(lines: list[str]) -> None:
        said.extend(lines)
        del said[:-20]

    try:
        await run(command, seconds=seconds, read=read)
    except ServiceError as error:
        reason = next((line for line in reversed(said) if line.strip()), error.message)
        raise unavailable(reason[:500], hint="The site was left as it is.") from error
    return model.model_validate_json(said[-1])


def _object(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        found: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return found
