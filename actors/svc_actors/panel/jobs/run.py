"""A running job as its work sees it: its log, its progress, and the programs that it runs.

The database may be away while a job runs for hours. Everything here that writes waits for the database and tries again,
instead of failing the job: a backup that is complete must not be lost because PostgreSQL was restarted while its log
was written.

Rejected: relying on PR_SET_PDEATHSIG alone to end programs. The signal depends on the thread that started the program,
here one of a pool, and does not reach processes that the program starts. Instead each program has a subreaper as its
parent, and an environment variable that lets the next core find it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.panel.jobs.records import JobError, StartedJob, set_progress, write_lines
from svc_actors.runtime import DomainError
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError, unavailable
from svc_webhost.programs import ExitedError, Program, run_program

MARK: Final = "SVC_PANEL_JOB"
"""The environment variable that marks programs of jobs. Its value is the installation's id, a slash and the job's
id."""
MOST_OUTPUT: Final = 64 * 2**20
"""The most characters of one program's output that are logged: a runaway program must not fill the database."""
LEFT_OUT: Final = "The output exceeds 64 MiB; the rest is left out."
# Seconds between attempts, doubled each time: once the database answers again, the job continues within five seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

Read = Callable[[list[str]], Awaitable[None]]


_ADVICE: Final = re.compile(r"\s*(hint:|note:|\[notice\])", re.IGNORECASE)
"""Lines that uv, pip and git write after the line with the error."""


class ProgramFailed(ExitedError):  # noqa: N818 - named for what it says
    """A program exited with a status other than 0. `last` is the last line of its output, without advice."""

    def __init__(self, name: str, status: int, last: str) -> None:
        how = f"was ended by signal {status - 128}" if status > 128 else f"ended with exit status {status}"
        super().__init__(
            status,
            f"{name} {how}{f': {last}' if last else '.'}",
            hint="The job's log has its output.",
        )
        self.last = last


class JobRun:
    """Given to each step of the work. Its methods wait while the database is away."""

    def __init__(
        self, started: StartedJob, database: Database, changed: Callable[[int], None], installation: UUID
    ) -> None:
        self.job = started.job
        self.steps = started.steps
        self.position = 1
        """The number of the running step, counted from 1."""
        self.scope = trio.CancelScope()
        self.cancel_requested = False
        self.step_error: JobError | None = None
        """The error of the running step, if the work continues despite it."""
        self._database = database
        self._changed = changed
        self._mark = f"{installation}/{started.job.id}"

    @property
    def id(self) -> int:
        return self.job.id

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.job.parameters

    @property
    def site_id(self) -> UUID:
        """The site of a job that belongs to one."""
        assert self.job.site_id is not None
        return self.job.site_id

    def about(self, site_id: UUID, parameters: Mapping[str, Any]) -> JobRun:
        """This run with another site and other parameters, for a part of the job. Log and programs of the part belong
        to this job."""
        # The copy is shallow, so it shares the cancel scope and the mark: cancelling the job, or finding its programs,
        # includes this part.
        part = copy(self)
        part.job = replace(self.job, site_id=site_id, parameters=parameters)
        return part

    async def log(self, *messages: str) -> None:
        """Add lines to the log. If the connection is lost during the commit, the lines may be there twice."""
        lines = [line for message in messages for line in message.splitlines() or [""]]
        await self.persist(lambda: write_lines(self._database, self.id, self.position, lines))
        self._changed(self.id)

    async def progress(self, percent: float) -> None:
        """Store how much of the running step is done."""
        done = self.part_done(percent)
        await self.persist(lambda: self._database.transact(lambda tx: set_progress(tx, self.id, done)))

    def part_done(self, percent: float) -> int:
        """The progress of the whole job, in percent. 100 is reserved for a job that has succeeded."""
        # All steps have the same share of the progress, however long they take: their durations are not known in
        # advance, and progress must not go back.
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
        """Run a program to its end. Its output goes to the log, or to `read`, several lines at a time. `descriptors`:
        descriptors of this process that the program gets too.

        The program and all processes that it has started are gone when this returns or raises, when the job is
        cancelled, and when the core dies. Raises ProgramFailed, and `unavailable` after `seconds`.
        """
        last = ""
        room = MOST_OUTPUT

        async def take(lines: list[str]) -> None:
            nonlocal last, room
            last = next((line for line in reversed(lines) if line.strip() and not _ADVICE.match(line)), last)
            if read is not None:
                await read(lines)
            elif room > 0:
                # Beyond the limit the output is still read, and dropped: a program whose pipe is full would hang.
                room -= sum(map(len, lines)) + len(lines)
                await self.log(*lines, *([LEFT_OUT] if room <= 0 else []))

        marked = {**(environment or {}), MARK: self._mark}
        status = 0
        # `cancelled_caught` is true for the program's own deadline; a cancellation of the job propagates instead.
        with trio.move_on_after(seconds) as deadline:
            status = await run_program(Program(tuple(command), marked, folder, stdin, descriptors), take)
        name = Path(command[0]).name
        if deadline.cancelled_caught:
            raise unavailable(f"{name} took longer than {seconds:g} seconds and was stopped.")
        if status != 0:
            raise ProgramFailed(name, status, last)

    async def transact(self, write: Callable[[Transaction], Awaitable[object]]) -> None:
        """Commit a transaction, however long the database is away. It may run, and even commit, more than once: the
        answer to a commit can be lost."""
        await self.persist(lambda: self._database.transact(write))

    async def persist(self, write: Callable[[], Awaitable[object]]) -> None:
        """Repeat a write until the database, or the actor that is asked, has accepted it."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await write()
                return
            except DomainError as error:
                # A refusal is an answer, so it is raised. `unavailable`, and an actor that takes no messages now, may
                # pass.
                if isinstance(error, ServiceError) and error.code is not ErrorCode.UNAVAILABLE:
                    raise
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
