"""Models of scheduled tasks. A task is either a file of the site that a chosen interpreter runs with arguments, or a
URL path of the site that is requested. It is never a shell command, so no shell parses a customer's text."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from svc.panel.files.models import SITE_PATH
from svc.panel.sites.access import SiteChange, SiteRequest
from svc.registry.operation import Model, Request
from svc.registry.shapes import NAME, Shape
from svc_actors.panel.schedules.cron import LONGEST
from svc_actors.panel.schedules.records import Run, RunStatus, Schedule, ScheduleKind

MOST_ARGUMENTS: Final = 32
LONGEST_LIMIT: Final = 6 * 3600
URL_PATH: Final = r"/(?:[A-Za-z0-9._~!&()*+,;=:@%?-][A-Za-z0-9/._~!&()*+,;=:@%?-]*)?"

ScheduleName = Annotated[str, Field(min_length=1, max_length=100), NAME]
TaskPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        description="A file in the site's folder, such as private/tasks.py; for the kind url, a path of the site such "
        "as /wp-cron.php?doing_wp_cron.",
    ),
    Shape(rf"{SITE_PATH}|{URL_PATH}", "a path beneath the site's folder; or one of its URL, which starts with /"),
]
Argument = Annotated[
    str, Field(max_length=1024), Shape(r"[^\u0000-\u001f\u007f]*", "one argument, without control characters")
]
CronTimes = Annotated[
    str,
    Field(min_length=1, max_length=LONGEST, description="Minute, hour, day of the month, month, day of the week."),
    Shape(r"[0-9A-Za-z*/, -]+", "five fields such as */15 8-18 * * mon-fri"),
]
TimeZone = Annotated[
    str,
    Field(min_length=1, max_length=64, description="Time zone of the times, such as Europe/Berlin."),
    Shape(r"[A-Za-z][A-Za-z0-9_+/-]*", "a time zone such as UTC or Europe/Berlin"),
]
TimeLimit = Annotated[int, Field(ge=1, le=LONGEST_LIMIT, description="A run that takes longer is stopped.")]


class ScheduleModel(Model):
    """`next_run_at` is null while the task is disabled. Tasks of a site run only while it is active. Arguments, and the
    query of a URL, may hold secrets: callers who may not read the output of runs (`schedule.log`) do not see them."""

    id: UUID
    site_id: UUID
    name: str
    kind: ScheduleKind
    path: Annotated[str, Field(description="Without its query for a caller whose role or token lacks schedule.log.")]
    args: Annotated[
        list[str] | None, Field(description="Null for a caller whose role or token does not allow schedule.log.")
    ]
    cron: str
    time_zone: str
    time_limit_seconds: int
    enabled: bool
    next_run_at: datetime | None
    created_at: datetime

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleModel:
        members: dict[str, Any] = vars(schedule)
        return cls(**members | {"args": list(schedule.args)})

    def without_secrets(self) -> ScheduleModel:
        return self.model_copy(update={"args": None, "path": self.path.partition("?")[0]})


class ScheduleRun(Model):
    """`due_at` is null for a run that somebody requested. `exit_status` is the program's; for the kind url it is the
    HTTP status, and 0 if the site did not answer."""

    id: int
    schedule_id: UUID
    status: RunStatus
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None

    @classmethod
    def of(cls, run: Run) -> ScheduleRun:
        return cls(**{name: getattr(run, name) for name in ScheduleRun.model_fields})


class ScheduleRunLog(ScheduleRun):
    """`output` is the last part of what the run wrote."""

    output: str

    @classmethod
    def of(cls, run: Run) -> ScheduleRunLog:
        return cls(**vars(run))


class ScheduleListRequest(SiteRequest):
    """The tasks of one site."""


class ScheduleCreateRequest(SiteChange):
    """A run that is due while the previous one has not ended is skipped."""

    name: ScheduleName
    kind: ScheduleKind
    path: TaskPath
    args: Annotated[list[Argument], Field(default_factory=list, max_length=MOST_ARGUMENTS)]
    cron: CronTimes
    time_zone: TimeZone = "UTC"
    time_limit_seconds: TimeLimit = 3600
    enabled: bool = True


class ScheduleRequest(Request):
    id: UUID


class ScheduleChange(ScheduleRequest):
    """A change to one scheduled task."""

    site_id: Annotated[UUID | None, Field(description="Ignored: the schedule's own site is used.")] = None


class ScheduleUpdateRequest(ScheduleChange):
    """Fields left out stay as they are."""

    name: ScheduleName | None = None
    path: TaskPath | None = None
    args: Annotated[list[Argument], Field(max_length=MOST_ARGUMENTS)] | None = None
    cron: CronTimes | None = None
    time_zone: TimeZone | None = None
    time_limit_seconds: TimeLimit | None = None
    enabled: bool | None = None


class ScheduleDeleteRequest(ScheduleChange):
    """Its runs are deleted as well."""


class ScheduleStartRequest(ScheduleChange):
    """Starts a run now, in addition to the scheduled ones."""


class ScheduleRunsRequest(ScheduleRequest):
    """The runs of one task, newest first."""


class ScheduleRunRequest(ScheduleRequest):
    run: Annotated[int, Field(ge=1, le=2**62)]
