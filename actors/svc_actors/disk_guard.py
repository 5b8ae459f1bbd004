"""Watches the disk of the service's database, so that a full disk stops changes only.

A file of `RESERVE` bytes lies next to the database. Before the disk is full, further changes are refused, while reads,
the work under way and the alert go on. If something else fills the disk to the last block all the same, the reserve is
released: PostgreSQL needs room for its log even to start. Once there is space again the reserve is recreated and
changes are accepted.

Invariants:
- changes are accepted only while the reserve exists, or there is room to create it;
- the reserve is released only when two measurements in a row found the disk as good as full: by then the program that
  filled the disk has received ENOSPC, and does not fill the freed reserve as well.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_actors.alerts import Severity, set_alert
from svc_actors.disk_space import MIB, DiskLevel, Space, read_thresholds
from svc_actors.store import Database, Transaction, disk_full

RESERVE: Final = 64 * MIB
"""Four segments of PostgreSQL's log: recovery needs one or two, the rest takes minutes of background work."""
CLOSED_BELOW: Final = 48 * MIB
"""Free space below which changes are refused: three segments, so that PostgreSQL itself never runs out of space."""
OPEN_ABOVE: Final = 80 * MIB
"""Free space, not counting the reserve, from which changes are accepted again."""
_GIVE_UP_BELOW: Final = 20 * MIB
"""A segment of PostgreSQL's log and a little more: a stopped PostgreSQL does not start with less."""
_LOOK, _TELL = 1.0, 30.0

ALERT: Final = "disk:database"

log = structlog.get_logger(__name__)


class DiskGuard:
    """`watch` measures and acts, starting before the database is opened; `guard` and `tell` need it open. `goes_on`
    says in the alert what the service still does: "machines run on"."""

    def __init__(self, folder: Path, goes_on: str) -> None:
        self._folder = folder
        self._goes_on = goes_on
        self._file = folder / "reserve"
        self._as_good_as_full = False
        self._changed = trio.Event()
        folder.mkdir(parents=True, exist_ok=True, mode=0o711)
        self.space = Space.of(folder)
        """The last measurement. The reserve counts as used."""
        self.full = self.space.free < CLOSED_BELOW or not (self.reserve or self._has_room())
        """Whether changes are refused."""

    @property
    def reserve(self) -> int:
        """Bytes held back now: the whole reserve, or 0."""
        return RESERVE if self._file.exists() else 0

    async def watch(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Measure every second until cancelled. By the time it reports started, the reserve is released if PostgreSQL
        needs its space to start."""
        await self._look()
        await self._look()
        task_status.started()
        while True:
            await trio.sleep(_LOOK)
            await self._look()

    async def guard(self, database: Database) -> None:
        """Make `database` refuse callers' changes while the disk is full, until cancelled."""
        while True:
            database.disk_full = self.full
            await self._changed.wait()

    async def tell(self, database: Database) -> None:
        """Open and close the alert as the disk requires, until cancelled. Raises what the database raises; a new call
        continues with the alert that is open then, if any."""
        told: tuple[bool, DiskLevel] | None = None
        level = DiskLevel.OK
        while True:
            changed = self._changed
            level = (await read_thresholds(database)).level(self.space, level)
            now = (self.full, level)
            if now != told:
                await database.transact(partial(self._tell, full=self.full, level=level))
                told = now
            with trio.move_on_after(_TELL):
                await changed.wait()

    async def check(self) -> None:
        """The check of /healthz: raises `unavailable` while changes are refused."""
        if self.full:
            raise disk_full()

    async def _tell(self, tx: Transaction, *, full: bool, level: DiskLevel) -> None:
        disk = f"The disk of the service's database ({self._folder}) is {self.space}"
        message: str | None = None
        severity = Severity.CRITICAL
        if full:
            message = f"{disk}: changes are refused until there is space again. Reading goes on, and {self._goes_on}."
        elif level is not DiskLevel.OK:
            message = f"{disk}. Changes are refused once less than {CLOSED_BELOW // MIB} MiB are free."
            severity = level.severity
        await set_alert(tx, ALERT, message, severity=severity)

    async def _look(self) -> None:
        before = self.full
        try:
            await trio.to_thread.run_sync(self._measure)
        except OSError as error:
            log.warning("disk.not_measured", folder=str(self._folder), error=str(error))
        if self.full is not before:
            if self.full:
                log.warning("disk.full", folder=str(self._folder), space=str(self.space))
            else:
                log.warning("disk.has_space", folder=str(self._folder), space=str(self.space))
            self._changed.set()
            self._changed = trio.Event()

    def _measure(self) -> None:
        self.space = Space.of(self._folder)
        if not self.reserve and self._has_room():
            self._make_reserve()
        was, self._as_good_as_full = self._as_good_as_full, self.space.free < _GIVE_UP_BELOW
        if was and self._as_good_as_full and self.reserve:
            self._file.unlink()
            log.warning("disk.reserve_given_up", folder=str(self._folder))
        if not self.reserve:
            self.full = True
        elif self.full:
            self.full = self.space.free < OPEN_ABOVE
        else:
            self.full = self.space.free < CLOSED_BELOW

    def _has_room(self) -> bool:
        """Whether there is room for the reserve and for accepting changes."""
        return self.space.free >= RESERVE + OPEN_ABOVE

    def _make_reserve(self) -> None:
        """Raises `OSError`, and leaves no file, if the space has gone in the meantime."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE)
        except OSError:
            self._file.unlink()
            raise
        finally:
            os.close(descriptor)
        self.space = Space.of(self._folder)
