"""A running job, as its work sees it: its log, its progress, and the programs that it runs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.errors import ErrorCode, ServiceError, unavailable
from svc_actors.host.programs import Program, run_program
from svc_actors.panel.jobs.records import Begun, JobError, set_progress, write_lines
from svc_actors.runtime import DomainError
from svc_actors.store import Database, Transaction

MARK: Final = "SVC_PANEL_JOB"
"""Environment variable that marks the programs of jobs: `<installation id>/<job id>`."""
MOST_OUTPUT: Final = 64 * 2**20
"""Characters of one program's output that go to the log: a runaway program must not fill the database."""
LEFT_OUT: Final = "The output exceeds 64 MiB; the rest is left out."
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

Read = Callable[[list[str]], Awaitable[None]]


_ADVICE: Final = re.compile(r"\s*(hint:|note:|\[notice\])", re.IGNORECASE)
"""Lines that uv, pip and git write after the error line."""


class ProgramFailed(ServiceError):  # noqa: N818 - named for what it says
    """A program exited with a status other than 0. `last` is the last line of its output, without advice."""

    def __init__(self, name: str, status: int, last: str) -> None:
        how = f"was ended by signal {status - 128}" if status > 128 else f"ended with exit status {status}"
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"{name} {how}{f': {last}' if last else '.'}",
            hint="The job's log has its output.",
        )
        self.status = status
        self.last = last


class JobRun:
    """Passed to each step of the work. Its methods wait while the database is away."""

    def __init__(self, begun: Begun, database: Database, changed: Callable[[int], None], installation: UUID) -> None:
        self.job = begun.job
        self.steps = begun.steps
        self.position = 1
        """Position of the running step."""
        self.scope = trio.CancelScope()
        self.cancel_requested = False
        self.step_error: JobError | None = None
        """Error of the running step, if the work goes on without it."""
        self._database = database
        self._changed = changed
        self._mark = f"{installation}/{begun.job.id}"

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.job.parameters

    @property
    def site_id(self) -> UUID:
        """The site of a job that has one."""
        assert self.job.site_id is not None
        return self.job.site_id

    def about(self, site_id: UUID, parameters: Mapping[str, Any]) -> JobRun:
        """For work on another site as a part of this job: it uses this job's log and programs."""
        part = copy(self)
        part.job = replace(self.job, site_id=site_id, parameters=parameters)
        return part

    async def log(self, *messages: str) -> None:
        """Add lines to the log. If the connection to the database is lost meanwhile, they may be there twice."""
        lines = [line for message in messages for line in message.splitlines() or [""]]
        await self.persist(lambda: write_lines(self._database, self.id, self.position, lines))
        self._changed(self.id)

    async def progress(self, percent: float) -> None:
        """Report how much of the running step is done."""
        done = self.part_done(percent)
        await self.persist(lambda: self._database.transact(lambda tx: set_progress(tx, self.id, done)))

    def part_done(self, percent: float) -> int:
        """Progress of the whole job in percent; 100 only once it has succeeded."""
        share = (self.position - 1 + min(max(percent, 0.0), 100.0) / 100) / len(self.steps)
        return min(int(share * 100), 99)

    async def program(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: Path | None = None,
        descriptors: tuple[int, ...] = (),
        read: Read | None = None,
    ) -> None:
        """Run a program to its end. Its output goes to the log, or to `read`, in lines, several at a time.
        `descriptors`: file descriptors of this process that it inherits.

        When this returns or raises, when the job is cancelled, and when the core dies, the program and its children are
        ended. Raises ProgramFailed, and `unavailable` past `seconds`.
        """
        last = ""
        room = MOST_OUTPUT

        async def take(lines: list[str]) -> None:
            nonlocal last, room
            last = next((line for line in reversed(lines) if line.strip() and not _ADVICE.match(line)), last)
            if read is not None:
                await read(lines)
            elif room > 0:
                room -= sum(map(len, lines)) + len(lines)
                await self.log(*lines, *([LEFT_OUT] if room <= 0 else []))

        marked = {**(environment or {}), MARK: self._mark}
        status = 0
        with trio.move_on_after(seconds) as deadline:
            status = await run_program(Program(tuple(command), marked, folder, stdin, descriptors), take)
        name = Path(command[0]).name
        if deadline.cancelled_caught:
            raise unavailable(f"{name} took longer than {seconds:g} seconds and was stopped.")
        if status != 0:
            raise ProgramFailed(name, status, last)

    async def transact(self, write: Callable[[Transaction], Awaitable[object]]) -> None:
        """Commit a transaction, however long the database is away."""
        await self.persist(lambda: self._database.transact(write))

    async def persist(self, write: Callable[[], Awaitable[object]]) -> None:
        """Repeat `write`, which must be repeatable, until the database or the actor has taken it."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await write()
                return
            except DomainError as error:
                if isinstance(error, ServiceError) and error.code is not ErrorCode.UNAVAILABLE:
                    raise
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
