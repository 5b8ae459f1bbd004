"""A job under way, as its work sees it: its log, its progress, and the programs that it runs."""

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
"""The variable by which the programs of jobs are known: the installation's id, a slash, the job's."""
MOST_OUTPUT: Final = 64 * 2**20
"""Characters of what one program writes that go to the log: a program that runs wild must not fill the database."""
LEFT_OUT: Final = "The output exceeds 64 MiB; the rest is left out."
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

Read = Callable[[list[str]], Awaitable[None]]


_ADVICE: Final = re.compile(r"\s*(hint:|note:|\[notice\])", re.IGNORECASE)
"""What uv, pip and git write after the line that says what failed."""


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
    """Given to each step of the work. What it is asked for waits while the database is away."""

    def __init__(self, begun: Begun, database: Database, changed: Callable[[int], None], installation: UUID) -> None:
        self.job = begun.job
        self.steps = begun.steps
        self.position = 1
        """Of the step that is running."""
        self.scope = trio.CancelScope()
        self.cancel_requested = False
        self.step_error: JobError | None = None
        """Of the step that is running, where the work goes on without it."""
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
        """The site of a job that is of one."""
        assert self.job.site_id is not None
        return self.job.site_id

    def about(self, site_id: UUID, parameters: Mapping[str, Any]) -> JobRun:
        """For work on a site that is a part of this job, and not of the site's own: its log and programs are this
        job's."""
        part = copy(self)
        part.job = replace(self.job, site_id=site_id, parameters=parameters)
        return part

    async def log(self, *messages: str) -> None:
        """Add lines to the log. Should the connection to the database be lost in the midst they may be there twice."""
        lines = [line for message in messages for line in message.splitlines() or [""]]
        await self.persist(lambda: write_lines(self._database, self.id, self.position, lines))
        self._changed(self.id)

    async def progress(self, percent: float) -> None:
        """How much of the step that is running is done."""
        done = self.part_done(percent)
        await self.persist(lambda: self._database.transact(lambda tx: set_progress(tx, self.id, done)))

    def part_done(self, percent: float) -> int:
        """Of the whole job, in percent; a job is done when it has succeeded."""
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
        """Run a program to its end. What it writes goes to the log, or to `read`, in lines, several at a time.
        `descriptors`: of this process's, those that it has too.

        It is gone with all that it has started when this returns or raises, when the job is cancelled, and when the
        core dies. Raises ProgramFailed, and `unavailable` past `seconds`.
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
        """Have a transaction committed, however long the database is away."""
        await self.persist(lambda: self._database.transact(write))

    async def persist(self, write: Callable[[], Awaitable[object]]) -> None:
        """Do what may be repeated until the database, or the actor that it is asked of, has taken it."""
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
