"""Writes the logs of sites' programs, with limits: `python -I -S log_writer.py PIPES LOGS LARGEST RATE`

A site's program writes into a named pipe, `PIPES/s1001.php`; this process, one for all sites, appends its output to
`LOGS/s1001/php.log`. A log of LARGEST bytes is rotated, and four old ones are kept (`make_room`). From each pipe it
reads RATE bytes a second, after a burst: a program that writes faster waits, as with any full pipe. So a site's log can
use up neither the disk nor the processor.

The programs hold their pipes open for reading as well (`confined/enter_site.py`): while this process is away, their
output stays in the pipe, and no program is ended by it. Output that cannot be written, for example to a full disk, is
lost.

Invariant: data that has left a pipe is in its log once the log is not locked (flock(2)): to get a program's latest
output, wait for an empty pipe, and then for the lock (`site_logs.flush_logs`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

LARGEST = 32 * 1024 * 1024
"""The most bytes of a log: some 200,000 requests."""
KEPT = 4
RATE = 1 << 20
"""The most bytes per second from each pipe."""
_BURST_SECONDS = 8.0
"""For how many seconds of silence a burst may make up."""
_CHUNK = 65_536
_IN_CREATE, _IN_MOVED_TO, _IN_DELETE = 0x100, 0x80, 0x200
_NONBLOCK, _CLOEXEC = 0o4000, 0o2000000

_libc = ctypes.CDLL(None, use_errno=True)


def make_room(path: Path) -> None:
    """Free the name `path`.1. Starting with the oldest, each log takes the next number: a crash while this is under way
    loses at most the oldest log."""
    for number in range(KEPT - 1, 0, -1):
        older = numbered(path, number)
        if older.exists():
            older.replace(numbered(path, number + 1))


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


class _Log:
    def __init__(self, pipe: int, path: Path, largest: int, rate: int) -> None:
        self.pipe = pipe
        self._path = path
        self._largest = largest
        self._rate = rate
        self._paid = time.monotonic() - _BURST_SECONDS
        """The time up to which the bytes read so far have used up `rate`."""
        self._file = -1
        self._open()

    @property
    def rests_until(self) -> float | None:
        """Until when the pipe is not to be read; None: it may be read now."""
        return self._paid if self._paid > time.monotonic() else None

    def take(self) -> None:
        """Read once from the pipe into the file."""
        if self._file >= 0 and not os.fstat(self._file).st_nlink:
            # The log's site was removed, or the file was deleted.
            os.close(self._file)
            self._file = -1
        if self._file < 0:
            self._open()
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            said = os.read(self.pipe, _CHUNK)
            self._paid = max(self._paid, time.monotonic() - _BURST_SECONDS) + len(said) / self._rate
            while said and self._file >= 0:
                said = said[os.write(self._file, said) :]
            if self._file >= 0 and os.fstat(self._file).st_size >= self._largest:
                make_room(self._path)
                self._path.rename(numbered(self._path, 1))
                # The full file stays locked until the new one exists.
                full = self._file
                self._open()
                os.close(full)
        except OSError:
            # The site was removed, or the disk is full: this output is lost, and the next output tries again.
            pass
        finally:
            if self._file >= 0:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self.pipe)
        if self._file >= 0:
            os.close(self._file)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = -1
        # If the log's folder does not exist, the site is gone or not created yet.
        with suppress(OSError):
            self._file = os.open(self._path, flags, 0o640)


class _Writer:
    def __init__(self, pipes: Path, logs: Path, largest: int, rate: int) -> None:
        self._pipes = pipes
        self._logs = logs
        self._largest = largest
        self._rate = rate
        self._open: dict[str, _Log] = {}
        self._resting: dict[str, float] = {}
        self._names: dict[int, str] = {}
        self._poll = select.epoll()
        self._changes = _libc.inotify_init1(_NONBLOCK | _CLOEXEC)
        if _libc.inotify_add_watch(self._changes, str(pipes).encode(), _IN_CREATE | _IN_MOVED_TO | _IN_DELETE) < 0:
            raise OSError(ctypes.get_errno(), f"{pipes} cannot be watched")
        self._poll.register(self._changes, select.EPOLLIN)

    def run(self) -> None:
        self._look()
        while True:
            now = time.monotonic()
            for name in [name for name, until in self._resting.items() if until <= now]:
                del self._resting[name]
                self._poll.modify(self._open[name].pipe, select.EPOLLIN)
            until = min(self._resting.values(), default=None)
            for descriptor, _ in self._poll.poll(None if until is None else max(0.0, until - now)):
                if descriptor == self._changes:
                    os.read(self._changes, _CHUNK)
                    self._look()
                elif descriptor in self._names:
                    self._take(self._names[descriptor])

    def _take(self, name: str) -> None:
        log = self._open[name]
        log.take()
        if (until := log.rests_until) is not None:
            self._resting[name] = until
            self._poll.modify(log.pipe, 0)

    def _look(self) -> None:
        """Read exactly the existing pipes."""
        there = set(os.listdir(self._pipes))
        for name in self._open.keys() - there:
            log = self._open.pop(name)
            self._resting.pop(name, None)
            del self._names[log.pipe]
            self._poll.unregister(log.pipe)
            log.close()
        for name in there - self._open.keys():
            account, _, kind = name.partition(".")
            try:
                # Opened for writing, too: so the pipe never reports an end, even if all other writers close it.
                pipe = os.open(self._pipes / name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                os.close(pipe)
                continue
            self._open[name] = _Log(pipe, self._logs / account / f"{kind}.log", self._largest, self._rate)
            self._names[pipe] = name
            self._poll.register(pipe, select.EPOLLIN)


def main(pipes: str, logs: str, largest: str, rate: str) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Each log needs two descriptors.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _Writer(Path(pipes), Path(logs), int(largest), int(rate)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
