"""Types of the requests and answers about applications of sites."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field, field_validator

from svc.panel.files.models import SITE_PATH, FolderPath
from svc.panel.log_lines import Containing, LogCursor, MostLines
from svc.panel.sites.access import SiteChange, SiteRequest
from svc.registry.operation import Model
from svc.registry.shapes import Shape
from svc_actors.panel.apps.records import AppRow
from svc_actors.panel.apps.variables import MOST_VARIABLE_BYTES, MOST_VARIABLES, variable_bytes
from svc_common.errors import wrong_field
from svc_webhost.apps import AppInterface, AppRuntime
from svc_webhost.launcher import ServiceStatus

_CALLABLE: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_SCRIPT: Final = r"(?!-).*\.[cm]?js"

Entry = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        description="Python: module:callable. Node: a script in the folder, such as server.js.",
    ),
    Shape(SITE_PATH, "module:callable such as app:application, or a script such as server.js"),
]
HealthPath = Annotated[
    str,
    Field(
        max_length=512, description="Path that a new start must answer with a status below 500 before it gets visitors."
    ),
    Shape(r"/[A-Za-z0-9/._~!&()*+,;=:@%?-]*", "a path such as /health"),
]


VariableName = Annotated[
    str,
    Field(max_length=128),
    Shape(
        r"(?!SVC_|LISTEN_)[A-Za-z_][A-Za-z0-9_]*",
        "letters, digits and underscores, not starting with a digit, SVC_ or LISTEN_",
    ),
]
VariableValue = Annotated[str, Field(max_length=16_384), Shape(r"[^\u0000]*", "without NUL")]


class AppState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"


class SiteAppModel(Model):
    """`release` is the number of the start that visitors reach. `problem` is why the last start failed. `restarts`: how
    often it was restarted since `since`, after it had ended by itself; `last_exit`: how it ended the last time."""

    site_id: UUID
    runtime: AppRuntime
    interface: AppInterface
    entry: str
    folder: str
    health_path: str
    state: AppState
    release: int | None
    problem: str | None
    since: datetime | None
    restarts: int
    last_exit: str | None

    @classmethod
    def of(cls, app: AppRow, status: ServiceStatus) -> SiteAppModel:
        state = AppState.RUNNING if app.live is not None and status.running else AppState.STARTING
        return cls(
            site_id=app.site_id,
            runtime=app.runtime,
            interface=app.interface,
            entry=app.entry,
            folder=app.folder,
            health_path=app.health_path,
            state=AppState.STOPPED if app.wanted is None else state,
            release=app.live,
            problem=app.problem,
            since=status.since,
            restarts=status.restarts,
            last_exit=status.last_exit,
        )


class AppUpdateRequest(SiteChange):
    """Fields left out stay as they are. The change takes effect at the next start."""

    interface: AppInterface | None = None
    entry: Entry | None = None
    folder: FolderPath | None = None
    health_path: HealthPath | None = None


class AppStartRequest(SiteChange):
    """An application that runs is left as it is."""


class AppStopRequest(SiteChange):
    """Requests that are being answered get half a minute to end."""


class AppRestartRequest(SiteChange):
    """The new process serves visitors once it answers; if it does not answer, the former one continues."""


class AppVariable(Model):
    """An environment variable of an application. Its value is never shown."""

    name: str
    set_at: datetime


class AppVariablesRequest(SiteChange):
    """From the next start on the application has exactly these variables; null keeps the current value."""

    variables: Annotated[
        dict[VariableName, VariableValue | None],
        Field(
            max_length=MOST_VARIABLES, repr=False, description="All variables by name; null keeps the current value."
        ),
    ]

    @field_validator("variables")
    @classmethod
    def _bounded(cls, values: dict[str, str | None]) -> dict[str, str | None]:
        size = sum(variable_bytes(name, value or "") for name, value in values.items())
        if size > MOST_VARIABLE_BYTES:
            raise ValueError(f"must not have more than {MOST_VARIABLE_BYTES // 1024} KiB together")
        return values


class AppLogRequest(SiteRequest):
    """`after` is the cursor of an earlier answer; without it, the last lines are returned."""

    after: LogCursor | None = None
    q: Containing | None = None
    limit: MostLines = 100


def require_entry(runtime: AppRuntime, entry: str) -> None:
    """Raise `invalid` if this runtime cannot run the entry."""
    if runtime is AppRuntime.PYTHON and re.fullmatch(_CALLABLE, entry, re.ASCII) is None:
        raise wrong_field("entry", "must be module:callable for Python, such as app:application")
    if runtime is AppRuntime.NODE and re.fullmatch(_SCRIPT, entry) is None:
        raise wrong_field("entry", "must be a script for Node, such as server.js")
