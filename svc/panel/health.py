"""Health of the server: the result of each check, and the changes of the last 30 days."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.health import CheckName, HealthStatus
from svc_actors.panel.health.records import read_checks, read_events

operations = Operations[Panel]()


class HealthRequest(Request):
    events: Annotated[bool, Field(description="With what changed in the last 30 days.")] = False


class HealthCheck(Model):
    """`status` is the result of several checks in a row, since `since`; `message` and `value` are those of the last
    one, at `checked_at`."""

    name: CheckName
    status: HealthStatus
    message: str
    value: float | None
    since: datetime
    checked_at: datetime


class HealthEvent(Model):
    """A change of a check's status."""

    at: datetime
    check: CheckName
    before: HealthStatus
    status: HealthStatus
    message: str


class Health(Model):
    """`status` is the worst of the checks; `unknown` until the first round of checks, a minute after the installation.
    `events`: the newest first; null if not requested."""

    status: HealthStatus
    checks: list[HealthCheck]
    events: list[HealthEvent] | None


@operations.declare(
    "health.show",
    "Whether this server is well: disk, memory, services, certificates, backups and more",
    Route.get("/health"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("health",),
)
async def show(context: Context[Panel], request: HealthRequest) -> Health:
    database = context.services.database
    checks = [HealthCheck.model_validate(dict(row)) for row in await read_checks(database)]
    worst = max((check.status for check in checks), key=lambda status: status.rank, default=HealthStatus.UNKNOWN)
    events = [HealthEvent.model_validate(dict(row)) for row in await read_events(database)] if request.events else None
    return Health(status=worst, checks=checks, events=events)
