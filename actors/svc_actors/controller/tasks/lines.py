"""The lines that the work of tasks adds to their logs, written together.

While one transaction is being committed, what comes waits for the next. A line alone is written at once; where a
hundred machines are being built, a transaction for each line and each start (two of the four of a creation) took a
tenth of the processor time of the service and of PostgreSQL.

Invariants:
- a line is committed when `add` returns, so a task's lines have the order of its calls;
- a task whose row somebody holds delays no other: its line is written by itself;
- what the database refuses of many lines is tried line by line: nobody hears of another's error.
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
    """One a task runner, which hosts `run`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Waiting] = []
        self._woken = trio.Event()

    async def add(self, line: NewLine) -> bool:
        """Return once the line is committed, or the task was found to have ended: then nothing is written. False where
        its log had no room for it. Raises what the database makes of it."""
        waiting = _Waiting(line)
        self._waiting.append(waiting)
        self._woken.set()
        await waiting.ended.wait()
        if waiting.error is not None:
            raise waiting.error
        return waiting.written

    async def run(self) -> None:
        """Write what is added, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._woken.wait()
                self._woken = trio.Event()
                while together := self._take():
                    for each in await self._write(together):
                        nursery.start_soon(self._write_alone, each)

    def _take(self) -> list[_Waiting]:
        """The oldest that wait, one of each task: a row is updated once in a statement."""
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
        """Write all; gives those that are to be written by themselves."""
        try:
            written = await self._database.transact(partial(log_tasks, lines=[each.line for each in together]))
        except Exception as error:  # noqa: BLE001 - of any kind: who it is about is found by writing each by itself
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
        except Exception as error:  # noqa: BLE001 - the one who added it is told, whatever it is
            waiting.error = error
        waiting.ended.set()
