"""Starts the runs of schedules, at their time or on request, and stores their results.

Invariants:
- a schedule's next due time is in its row: a restart loses nothing;
- a schedule has one run at a time, and one that is due meanwhile is recorded as skipped;
- a run that was due while no core was running starts late, once, if it is at most `LATE` late; otherwise it is recorded
  as missed;
- while a recovery has not restored a site's files yet, no run of the site starts at its time;
- no run of a site starts while the site is not active, and runs end when their site is suspended or deleted;
- the programs of a run have ended before its end is stored, and when this process dies.

Why: docs/decisions/0047-jobs-and-schedules.md.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import structlog
import trio

from svc_actors.certificates import covers
from svc_actors.panel.schedules.cron import BadCronError
from svc_actors.panel.schedules.records import (
    CHANNEL,
    SCHEDULE_COLUMNS,
    RunStatus,
    Schedule,
    ScheduleKind,
    as_schedule,
    end_open_runs,
    has_open_run,
    insert_past_run,
    insert_run,
    update_due,
    write_ended,
    write_started,
)
from svc_actors.panel.sites.records import SITE_COLUMNS, STATUS_CHANNEL, SiteRow, as_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database, LoopAlert, Queryable, Transaction, keep_running
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.launcher import Limits
from svc_webhost.programs import LeftBehindError, end_marked
from svc_webhost.site_tasks import MARK, Interpreter, SiteScript, SiteTasks, SiteVisit

LATE: Final = timedelta(minutes=10)
MOST_AT_ONCE: Final = 32
MOST_OF_AN_OWNER: Final = 4
"""The most concurrent runs of one owner; further runs wait. So at midnight no customer takes the whole server from the
others."""
LONGEST_OUTPUT: Final = 32 * 1024
"""How many characters of a run's output are kept: the last ones."""
MOST_OUTPUT: Final = 16 * 1024 * 1024
"""A run that writes more characters is stopped: all output passes through the core, which has other work."""
_LONGEST_LOOK: Final = 30.0
"""The most seconds between two looks: an announcement may be lost with the process that made it."""
_NOT_RECORDED: Final = "The service could not record this run or its output; its log has the cause."
_AT_A_TIME: Final = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0

Result = TypeVar("Result")

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.schedules")


@dataclass(frozen=True)
class _Begun:
    run_id: int
    schedule: Schedule
    site: SiteRow
    limits: Limits
    secure: bool
    staged: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class _TooMuchError(Exception):
    """A run wrote more than `MOST_OUTPUT`."""


@dataclass
class _Output:
    """The last part of a run's output."""

    lines: deque[str] = field(default_factory=deque)
    size: int = 0
    cut: bool = False
    room: int = MOST_OUTPUT

    async def take(self, lines: list[str]) -> None:
        self.room -= sum(map(len, lines)) + len(lines)
        if self.room < 0:
            raise _TooMuchError
        await self.add(lines)

    async def add(self, lines: list[str]) -> None:
        for line in lines:
            # PostgreSQL's text type cannot contain NUL characters.
            kept = line.replace("\0", "\N{REPLACEMENT CHARACTER}")[-LONGEST_OUTPUT + 1 :]
            self.lines.append(kept)
            self.size += len(kept) + 1
        while self.size > LONGEST_OUTPUT:
            self.size -= len(self.lines.popleft()) + 1
            self.cut = True
        await trio.lowlevel.checkpoint()

    def __str__(self) -> str:
        return "\n".join((["..."] if self.cut else []) + list(self.lines))


class Scheduler:
    """One per process."""

    def __init__(
        self, database: Database, tasks: SiteTasks, clock: Callable[[], datetime], alert: LoopAlert | None = None
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._clock = clock
        self._alert = alert
        self._woken = trio.Event()
        self._begun: dict[int, _Begun] = {}
        self._places = trio.CapacityLimiter(MOST_AT_ONCE)
        self._places_of: defaultdict[UUID, trio.CapacityLimiter] = defaultdict(
            lambda: trio.CapacityLimiter(MOST_OF_AN_OWNER)
        )
        self._installation = UUID(int=0)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """End runs that an earlier core left, then start due runs until cancelled."""
        self._installation = await self._database.fetchval("SELECT install_id FROM panel_installation")
        await self._end_interrupted()
        async with trio.open_nursery() as nursery:
            announcements = self._database.announcements
            with announcements.listener(CHANNEL, self._wake), announcements.listener(STATUS_CHANNEL, self._wake):
                serve = partial(self._serve, nursery)
                nursery.start_soon(keep_running, "schedules", serve, self._alert)
                task_status.started()
                await trio.sleep_forever()

    async def _end_interrupted(self) -> None:
        try:
            ended = await end_marked(MARK, f"{self._installation}/")
        except LeftBehindError as error:
            log.error("schedule.programs_left", error=str(error))
        else:
            if ended:
                log.warning("schedule.programs_ended", processes=ended)
        runs = await self._database.transact(lambda tx: end_open_runs(tx, self._clock()))
        if runs:
            log.warning("schedule.runs_interrupted", runs=runs)

    async def _serve(self, nursery: trio.Nursery) -> None:
        while True:
            self._woken = woken = trio.Event()
            await self._decide()
            await self._begin(nursery)
            await self._end_of_inactive()
            with trio.move_on_after(await self._pause()):
                await woken.wait()

    def _wake(self, _: str) -> None:
        self._woken.set()

    async def _decide(self) -> None:
        """For each due schedule, decide whether it runs now, and when it is due next."""
        now = self._clock()
        due = "SELECT id FROM schedules WHERE next_run_at <= $1 ORDER BY next_run_at LIMIT $2"
        while rows := await self._database.fetch(due, now, _AT_A_TIME):
            for row in rows:
                await self._database.transact(partial(_decide_one, schedule_id=row["id"], now=now))

    async def _begin(self, nursery: trio.Nursery) -> None:
        queued = "SELECT id, schedule_id FROM schedule_runs WHERE status = 'queued' AND ended_at IS NULL ORDER BY id"
        for row in await self._database.fetch(queued):
            if row["id"] not in self._begun:
                begun = await self._read(self._database, row["id"], row["schedule_id"])
                if begun is not None:
                    self._begun[begun.run_id] = begun
                    nursery.start_soon(self._carry_out, begun, name=f"run {begun.run_id} of a schedule")

    async def _read(self, queryable: Queryable, run_id: int, schedule_id: UUID) -> _Begun | None:
        """Read a run with its schedule and site; None if one of these was deleted meanwhile."""
        schedule = await queryable.fetchrow(f"SELECT {SCHEDULE_COLUMNS} FROM schedules WHERE id = $1", schedule_id)
        site = await queryable.fetchrow(
            f"""SELECT {SITE_COLUMNS}, sites.cpu_percent, sites.memory_mib, sites.processes,
                       (SELECT names FROM site_certificates WHERE site_id = sites.id) AS certified,
                       EXISTS (SELECT FROM stagings WHERE copy_id = sites.id) AS staged
                FROM sites WHERE id = (SELECT site_id FROM schedules WHERE id = $1)""",
            schedule_id,
        )
        if schedule is None or site is None:
            return None
        return _Begun(
            run_id=run_id,
            schedule=as_schedule(schedule),
            site=as_site(site),
            limits=Limits(site["cpu_percent"], site["memory_mib"], site["processes"]),
            secure=site["force_https"] and covers(site["certified"] or (), site["domain"]),
            staged=site["staged"],
        )

    async def _end_of_inactive(self) -> None:
        sites = list({begun.site.id for begun in self._begun.values()})
        rows = await self._database.fetch("SELECT id FROM sites WHERE id = ANY($1) AND status = 'active'", sites)
        active = {row["id"] for row in rows}
        for begun in self._begun.values():
            if begun.site.id not in active:
                begun.scope.cancel()

    async def _pause(self) -> float:
        """Seconds until something is due."""
        due: datetime | None = await self._database.fetchval("SELECT min(next_run_at) FROM schedules")
        if due is None:
            return _LONGEST_LOOK
        return min(max((due - self._clock()).total_seconds(), 0.0), _LONGEST_LOOK)

    async def _carry_out(self, queued: _Begun) -> None:
        output = _Output()
        status, exit_status = RunStatus.FAILED, None
        try:
            status, exit_status = await self._run_one(queued, output)
            await self._write_ended(queued, status, exit_status, str(output))
        except Exception:  # Only this run fails to be recorded: an exception raised here would end all schedules.
            log.exception("schedule.run_not_recorded", schedule_id=str(queued.schedule.id), run=queued.run_id)
            await self._end_without_output(queued, status, exit_status)
        finally:
            del self._begun[queued.run_id]

    async def _run_one(self, queued: _Begun, output: _Output) -> tuple[RunStatus, int | None]:
        with queued.scope:
            async with self._places_of[queued.site.owner_id], self._places:
                # Read again, because the run may have waited an hour for a free place.
                begun = await self._read_again(queued)
                if begun is not None and await self._store(lambda tx: write_started(tx, begun.run_id, self._clock())):
                    return await self._outcome(begun, output)
        return RunStatus.STOPPED, None

    async def _end_without_output(self, queued: _Begun, status: RunStatus, exit_status: int | None) -> None:
        """Record the end of a run, and retry until that succeeds: the task does not run again before the end of its
        last run is recorded. Meanwhile the run stays in `_begun`, so that a run whose row is still queued is not
        started a second time."""
        while True:
            try:
                return await self._write_ended(queued, status, exit_status, _NOT_RECORDED)
            except Exception:  # Not raised, for the same reason as in `_carry_out`.
                log.exception("schedule.end_not_recorded", schedule_id=str(queued.schedule.id), run=queued.run_id)
            await trio.sleep(_LONGEST_LOOK)

    async def _write_ended(self, queued: _Begun, status: RunStatus, exit_status: int | None, output: str) -> None:
        await self._store(lambda tx: write_ended(tx, queued.run_id, status, self._clock(), exit_status, output))

    async def _read_again(self, queued: _Begun) -> _Begun | None:
        """The run, read again; None if it must not run any longer because it was deleted, was disabled since it was
        queued, or its site is not active."""
        begun = await self._store(lambda tx: self._read(tx, queued.run_id, queued.schedule.id))
        if begun is None or begun.site.status is not SiteStatus.ACTIVE:
            return None
        if queued.schedule.enabled and not begun.schedule.enabled:
            return None
        return begun

    async def _outcome(self, begun: _Begun, output: _Output) -> tuple[RunStatus, int | None]:
        limit = begun.schedule.time_limit_seconds
        try:
            with trio.move_on_after(limit):
                exit_status = await self._do(begun, output)
                good = 200 <= exit_status < 400 if begun.schedule.kind is ScheduleKind.URL else exit_status == 0
                return (RunStatus.SUCCEEDED if good else RunStatus.FAILED), exit_status
        except OSError as error:
            await output.add([f"It could not be started: {error}"])
            return RunStatus.FAILED, None
        except _TooMuchError:
            await output.add([f"It wrote more than {MOST_OUTPUT >> 20} MiB and was stopped."])
            return RunStatus.FAILED, None
        except Exception:  # A defect in one run ends that run and never stops the scheduler.
            log.exception("schedule.crashed", schedule_id=str(begun.schedule.id), run=begun.run_id)
            await output.add(["The service failed while doing this; its log has the cause."])
            return RunStatus.FAILED, None
        await output.add([f"It took longer than {limit} seconds and was stopped."])
        return RunStatus.TIMED_OUT, None

    async def _do(self, begun: _Begun, output: _Output) -> int:
        schedule, site = begun.schedule, begun.site
        if schedule.kind is ScheduleKind.URL:
            return await self._tasks.visit(SiteVisit(site.domain, schedule.path, begun.secure), output.take)
        script = SiteScript(
            account=site.account,
            interpreter=Interpreter(schedule.kind.value),
            path=schedule.path,
            arguments=schedule.args,
            limits=begun.limits,
            mark=f"{self._installation}/{begun.run_id}",
            staged=begun.staged,
        )
        return await self._tasks.run(script, output.take)

    async def _store(self, write: Callable[[Transaction], Awaitable[Result]]) -> Result:
        """Run a read or a write, and repeat it for as long as the database is away."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._database.transact(write)
            except ServiceError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


async def record_missed_runs(tx: Transaction, now: datetime) -> None:
    """Record due schedules as missed, after the database has lost its last commits: they may have run already. The next
    start ends runs that look open."""
    rows = await tx.fetch(
        f"SELECT {SCHEDULE_COLUMNS} FROM schedules WHERE next_run_at <= $1 ORDER BY id FOR NO KEY UPDATE", now
    )
    for schedule in map(as_schedule, rows):
        assert schedule.next_run_at is not None, "it is due"
        await insert_past_run(tx, schedule, RunStatus.MISSED, schedule.next_run_at, now)
        try:
            following = schedule.next_after(now)
        except BadCronError:
            following = None
        await update_due(tx, schedule, following)


async def _decide_one(tx: Transaction, schedule_id: UUID, now: datetime) -> None:
    row = await tx.fetchrow(
        f"""SELECT {SCHEDULE_COLUMNS}, sites.status AS site_status,
                   EXISTS (SELECT FROM recovery_sites
                           WHERE recovery_sites.site_id = sites.id AND recovery_sites.status <> 'recovered') AS lost
            FROM schedules JOIN sites ON sites.id = schedules.site_id
            WHERE schedules.id = $1 AND schedules.next_run_at <= $2 FOR NO KEY UPDATE OF schedules""",
        schedule_id,
        now,
    )
    if row is None:
        return
    schedule = as_schedule(row)
    due = schedule.next_run_at
    assert due is not None, "it is due"
    try:
        following = schedule.next_after(now)
    except BadCronError as error:
        # The schedule's time zone no longer exists on this server.
        log.warning("schedule.unreadable", schedule_id=str(schedule_id), error=str(error))
        following = None
    await update_due(tx, schedule, following)
    if row["site_status"] != SiteStatus.ACTIVE or row["lost"]:
        return
    if now - due > LATE:
        await insert_past_run(tx, schedule, RunStatus.MISSED, due, now)
    elif await has_open_run(tx, schedule):
        await insert_past_run(tx, schedule, RunStatus.SKIPPED, due, now)
    else:
        await insert_run(tx, schedule, due)
