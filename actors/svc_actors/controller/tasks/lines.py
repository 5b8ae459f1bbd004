"""Writes the log lines of many tasks in shared transactions.

Lines that arrive during a commit wait for the next transaction; a single line is written at once. Rejected: one
transaction for each line and each start. These were two of the four transactions of a creation, and while a hundred
machines were being built, they took a tenth of the processor time of the service and of PostgreSQL.

Invariants:
- a line is committed when `add` returns, so a task's lines have the order of its calls;
- a task whose row is locked delays no other: its line is written separately;
- lines that the database refuses together are tried one by one: no task gets the error of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.tasks.records import NewLine, log_tasks, start_task
from svc_actors.store import Database, Transaction

_MOST_TOGETHER: Final = 256
log = structlog.get_logger(__name__)


@dataclass(eq=False)
class _Waiting:
    line: NewLine
    ended: trio.Event = field(default_factory=trio.Event)
    written: bool = True
    error: Exception | None = None


class LineWriter:
    """One per task runner, which runs `run`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._woken = trio.Event()

    async def add(self, line: NewLine) -> bool:
        """Return once the line is committed, or the task turns out to have ended: then nothing is written. Returns
        False if the log is full. Raises what the database raises."""
        waiting = _Waiting(line)
        self._waiting.append(waiting)
        self._woken.set()
        await waiting.ended.wait()
        if waiting.error is not None:
            raise waiting.error
        return waiting.written

    async def run(self) -> None:
        """Write added lines until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                while together := self._take():
                    for each in await self._write(together):
                        nursery.start_soon(self._write_alone, each)

    def _take(self) -> list[_Waiting]:
        """Take the oldest waiting lines, one for each task: a statement can update a row only once."""
        taken: dict[UUID, _Waiting] = {}
        left = []
        for each in self._waiting:
            if len(taken) < _MOST_TOGETHER and each.line.task_id not in taken:
                taken[each.line.task_id] = each
            else:
                left.append(each)
        self._waiting = left
        return list(taken.values())

    async def _write(self, together: Sequence[_Waiting]) -> list[_Waiting]:
        """Write all; returns those that must be written separately."""
        try:
            written = await self._database.transact(partial(log_tasks, lines=[each.line for each in together]))
        except Exception as error:  # noqa: BLE001 - of any kind: written separately, the bad line shows itself
            log.warning("task.lines_not_stored", lines=len(together), error=str(error))
            return list(together)
        for each in together:
            if each.line.task_id in written:
                each.written = written[each.line.task_id]
                each.ended.set()
        return [each for each in together if each.line.task_id not in written]

    async def _write_alone(self, waiting: _Waiting) -> None:
        line = waiting.line

        async def work(tx: Transaction) -> None:
            if line.message is None:
                await start_task(tx, line.task_id)
            else:
                written = await log_tasks(tx, [line], wait=True)
                waiting.written = written.get(line.task_id, True)

        try:
            await self._database.transact(work)
        except Exception as error:  # noqa: BLE001 - raised to the caller of `add`, whatever it is
            waiting.error = error
        waiting.ended.set()
