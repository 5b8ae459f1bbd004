"""Steps in a mounted target, in a process of their own: others write to the target too, and its server may not answer.

    look | verify SHARE SHARES | remove-unfinished | remove    MACHINES ID
    run                                                        MACHINES ID PROGRAM ARGUMENTS...

`MACHINES` is the folder `machines` of the target, `ID` that of a machine's store in it. Run by path, with nothing but
the standard library, so that it starts in hundredths of a second.

Invariants: every step uses the descriptor of an opened folder and follows no link, so nothing outside of the store is
read, moved or removed. Only regular files are opened: the type of a file is checked by a descriptor that does not open
the file (O_PATH), and the file is then opened through that descriptor, so that nothing else is opened if the name is
exchanged in between. Files are read in pieces.

Rejected: a thread of the agent. A thread that waits for a dead NFS server never ends, and occupies one of the few
threads for file work. A pipe under the name of a data file blocked a backup for ever.

Not prevented: restic opens paths within the opened folder, so it follows a link that replaces a folder while restic
runs. Only the kernel could prevent that (Landlock).

Standard output has lines of JSON, or a `.` for progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

MISSING = 71
"""Exit status if there is no target; then nothing was done."""
STRANGE = 72
"""Exit status if something other than a folder is found where one of the store's should be; standard error says
where."""
REPOSITORY = "/proc/self/fd/9"
"""The path under which the program of `run` finds the store."""
_DESCRIPTOR = 9
_FRAME = ("data", "index", "keys", "locks", "snapshots")
"""The folders of a restic repository; `data` contains further folders."""
_DAMAGED = "damaged"
_CONFIG = "config"
# O_NONBLOCK: if there is a pipe under a folder's name, opening it must not wait for its other end.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME_LENGTH = 64
_UNFINISHED = "-tmp-"
"""A part of a file's name until the file is complete (restic's local backend). Other names are digests, which contain
no dash."""
_PIECE_BYTES = 1024 * 1024
_SAY_BYTES = 16 * _PIECE_BYTES
_MOST_FILE_BYTES = 1024**3
"""restic's data files have 16 MiB, or 128 MiB at most if it is configured that way."""
_MOST_SET_ASIDE = 1_000
"""The most files that are set aside in one run, which has to end; the next run continues."""
_MOST_MEMORY = 256 * 1024 * 1024


class InvalidStoreError(Exception):
    """A part of the store is not what it should be; nothing was done beyond this part."""


@dataclass(frozen=True)
class Entry:
    """`folder` is open while the entry is in use. `mode` is as of its listing, and may be outdated."""

    folder: int
    within: str
    name: str
    mode: int

    @property
    def shown(self) -> str:
        return ascii(f"{self.within}/{self.name}")[1:-1]


def main(arguments: list[str]) -> int:
    step, machines, store, *more = arguments
    # The target is opened once. Everything below uses this descriptor, even if something else is mounted over the path
    # meanwhile.
    try:
        target = os.open(machines, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    try:
        if step == "run":
            _run(target, store, more)  # Does not return; restic has limits of its own.
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
        match step:
            case "look":
                _say(_look(target, store))
            case "verify":
                with _repository(target, store) as repository:
                    _verify(repository, int(more[0]), int(more[1]))
            case "remove-unfinished":
                with _repository(target, store) as repository:
                    _remove_unfinished(repository)
            case "remove":
                _remove(target, store)
    except InvalidStoreError as error:
        sys.stderr.write(str(error))
        return STRANGE
    return 0


def _run(target: int, store: str, command: list[str]) -> None:
    """Replace this process by the program, which uses the opened folder. If the target is unmounted meanwhile, restic
    does not create its folders on the node's own disk, which would then look like a target."""
    if "init" in command:
        # The store's folder is created here, because restic would also create missing parents.
        with suppress(FileExistsError):  # An interrupted creation has left the folder.
            os.mkdir(store, 0o700, dir_fd=target)
    with _repository(target, store) as repository:
        os.dup2(repository, _DESCRIPTOR, inheritable=True)
    os.execvp(command[0], command)  # noqa: S606  (no shell, on purpose)


def _look(target: int, store: str) -> dict[str, bool]:
    """Whether there is a repository, and whether it is locked. The data is not listed: a store of some TiB has hundreds
    of thousands of files, and on a slow server the caller's patience ended before the step printed a line."""
    try:
        os.stat(store, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        return {"there": False, "locked": False}
    with _repository(target, store) as repository:
        try:
            config = os.stat(_CONFIG, dir_fd=repository, follow_symlinks=False)
        except FileNotFoundError:
            return {"there": False, "locked": False}
        if not stat.S_ISREG(config.st_mode):
            raise InvalidStoreError(f"{_CONFIG} is no regular file")
        # All folders are opened although only `locks` is read: if one is a link, it is refused here, before restic
        # follows it.
        locked = False
        for name in (*_FRAME, _DAMAGED):
            with _folder(name, repository) as folder:
                if name == "locks" and folder is not None:
                    locked = bool(os.listdir(folder))
        return {"there": True, "locked": locked}


def walk(repository: int) -> Iterator[Entry]:
    """All entries of the store's folders, of whatever kind. Folders in `data` are entered, no others."""
    for within in _FRAME:
        with _folder(within, repository) as folder:
            if folder is None:
                continue
            for entry in _listed(folder, within):
                if within != "data" or not stat.S_ISDIR(entry.mode):
                    yield entry
                    continue
                try:
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # It was replaced since it was listed; the next run judges the replacement.
                try:
                    yield from _listed(inner, f"{within}/{entry.name}")
                finally:
                    os.close(inner)


def _listed(folder: int, within: str) -> Iterator[Entry]:
    for name in sorted(os.listdir(folder)):
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        yield Entry(folder, within, name, mode)


def _verify(repository: int, share: int, shares: int) -> None:
    """Set aside everything that is no regular file, and data files of this share whose content is not what their names
    say."""
    aside = 0
    for entry in walk(repository):
        # A dot is written for each file, even for a file of another share, which is not read. So the dots stop only if
        # the server does not answer.
        fault = _fault(entry, share, shares)
        sys.stdout.write(".\n")
        sys.stdout.flush()
        if fault is not None:
            _set_aside(repository, entry)
            _say({"damaged": entry.shown, "why": fault})
            aside += 1
            if aside == _MOST_SET_ASIDE:
                return


def _fault(entry: Entry, share: int, shares: int) -> str | None:
    if not stat.S_ISREG(entry.mode):
        return "it is no regular file"
    if not entry.within.startswith("data/") or len(entry.name) != _NAME_LENGTH:
        return None  # This includes unfinished files of a program that died: their temporary names are longer.
    if _DIGEST.fullmatch(entry.name) is None:
        return "its name is no digest"
    # The share follows from the file's name, which is a digest: so shares are of equal size, and a file is always in
    # the same share.
    if int(entry.name[:8], 16) % shares != share:
        return None
    try:
        return None if _digest(entry) == entry.name else "its content is not what its name says"
    except FileNotFoundError:
        return None
    except InvalidStoreError as error:
        return str(error)


def _digest(entry: Entry) -> str:
    digest, read = hashlib.sha256(), 0
    seen = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=entry.folder)
    try:
        there = os.fstat(seen)
        if not stat.S_ISREG(there.st_mode):
            raise InvalidStoreError("it is no regular file")
        if there.st_size > _MOST_FILE_BYTES:
            raise InvalidStoreError(f"it has {there.st_size} bytes, more than any file of data")
        with open(f"/proc/self/fd/{seen}", "rb", buffering=0) as file:
            # The size checked above is only that of one moment: a file to which somebody writes while it is read could
            # go on for ever.
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                read += len(piece)
                if read > _MOST_FILE_BYTES:
                    raise InvalidStoreError("it grows while it is read")
                if read % _SAY_BYTES == 0:
                    sys.stdout.write(".\n")
                    sys.stdout.flush()
    finally:
        os.close(seen)
    return digest.hexdigest()


def _set_aside(repository: int, entry: Entry) -> None:
    """Move the entry to `damaged`. Nothing is destroyed: an earlier entry of the same name there stays too."""
    with suppress(FileExistsError):
        os.mkdir(_DAMAGED, 0o700, dir_fd=repository)
    with _folder(_DAMAGED, repository) as damaged:
        if damaged is None:
            raise InvalidStoreError(f"{_DAMAGED} went away")
        name = entry.name
        try:
            os.stat(name, dir_fd=damaged, follow_symlinks=False)
            name = f"{name[:_NAME_LENGTH]}-{os.urandom(8).hex()}"
        except FileNotFoundError:
            pass
        with suppress(FileNotFoundError):
            os.rename(entry.name, name, src_dir_fd=entry.folder, dst_dir_fd=damaged)


def _remove_unfinished(repository: int) -> None:
    """Remove what restic was writing when it died, which it never removes itself. Nothing writes here meanwhile."""
    for entry in walk(repository):
        if _UNFINISHED in entry.name and not stat.S_ISDIR(entry.mode):
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=entry.folder)


def _remove(target: int, store: str) -> None:
    try:
        mode = os.stat(store, dir_fd=target, follow_symlinks=False).st_mode
        # If there is a link where the store should be, the link itself is removed, not the folder to which it leads.
        if stat.S_ISDIR(mode):
            with _repository(target, store) as folder:
                _empty(folder)
            os.rmdir(store, dir_fd=target)
        else:
            os.unlink(store, dir_fd=target)
    except FileNotFoundError:
        pass


def _empty(top: int) -> None:
    """Remove everything in a folder. Subfolders are moved up into it before they are entered, so depth does not matter:
    `shutil.rmtree` calls itself for each level; others can create thousands of levels, at which every removal
    failed."""
    while names := os.listdir(top):
        for name in names:
            if _unlinked(name, top):
                continue
            with _folder(name, top) as inner:
                # Moved under a random name, because the entry's own name may exist in `top` already.
                for each in os.listdir(inner) if inner is not None else ():
                    if not _unlinked(each, inner):
                        os.rename(each, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=top)


def _unlinked(name: str, folder: int | None) -> bool:
    """Remove this name; False for a folder, which stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


@contextmanager
def _repository(target: int, store: str) -> Iterator[int]:
    with _folder(store, target) as repository:
        if repository is None:
            raise InvalidStoreError("it is not there")
        yield repository


@contextmanager
def _folder(name: str, within: int) -> Iterator[int | None]:
    """A folder, opened without following a link; None if there is none. Raises `InvalidStoreError` if the name is
    something else."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=within)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        # For a file or a link the error is ENOTDIR or ELOOP. If it is a real folder, the target itself has failed (EIO,
        # ESTALE).
        if stat.S_ISDIR(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
            raise
        raise InvalidStoreError(f"{name} is no folder") from error
    try:
        yield folder
    finally:
        os.close(folder)


def _say(said: dict[str, bool] | dict[str, str]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
