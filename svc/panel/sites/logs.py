"""The logs of a site: the list of them, and their lines."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import trio

from svc.panel.log_lines import Containing, LogCursor, LogLines, MostLines, log_part
from svc.panel.services import Panel
from svc.panel.sites.access import SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.sites.records import SiteRow
from svc_webhost.folders import HostFolders
from svc_webhost.site_logs import flush_logs

operations = Operations[Panel]()


class LogSource(StrEnum):
    ACCESS = "access"
    """The requests, and the status of each answer."""
    ERROR = "error"
    """Errors of the web server."""
    PHP = "php"
    """Errors and warnings of PHP."""
    APP = "app"
    """The output of the site's application, if it has one."""


class SiteLog(Model):
    """`size` of the current file in bytes, without rotated ones; `changed_at` is null if nothing was logged yet."""

    source: LogSource
    size: int
    changed_at: datetime | None


class SiteLogLines(LogLines):
    source: LogSource


class SiteLogsRequest(SiteRequest):
    source: LogSource = LogSource.ACCESS
    q: Containing | None = None
    limit: MostLines = 100


class SiteLogReadRequest(SiteLogsRequest):
    """`after` is the cursor of an earlier answer; without it, the last lines are returned."""

    after: LogCursor | None = None


@operations.declare(
    "site.logs",
    "The last lines of a log of a site",
    Route.get("/sites/{id}/logs"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def last_lines(context: Context[Panel], request: SiteLogsRequest) -> SiteLogLines:
    return await lines_of(context, request, None)


@operations.declare(
    "site.log_sources",
    "Which logs a site has",
    Route.get("/sites/{id}/logs/sources"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("source", "size", "changed=changed_at"),
)
async def list_sources(context: Context[Panel], request: SiteRequest) -> list[SiteLog]:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    return await trio.to_thread.run_sync(_sources, services.config.folders, site)


@operations.declare(
    "site.log_read",
    "Read a log of a site, from a cursor on",
    Route.get("/sites/{id}/logs/read"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def read_on(context: Context[Panel], request: SiteLogReadRequest) -> SiteLogLines:
    return await lines_of(context, request, request.after)


async def lines_of(context: Context[Panel], request: SiteLogsRequest, after: str | None) -> SiteLogLines:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await flush_logs(services.config.folders, site.account, request.source.value)
    log = _file(services.config.folders, site, request.source)
    part = await log_part(log, after=after, text=request.q, most=request.limit)
    return SiteLogLines(source=request.source, lines=part.lines, cursor=part.cursor, more=part.more, gap=part.gap)


def _sources(folders: HostFolders, site: SiteRow) -> list[SiteLog]:
    found = []
    for source in LogSource:
        try:
            stat = _file(folders, site, source).stat()
        except FileNotFoundError:
            found.append(SiteLog(source=source, size=0, changed_at=None))
        else:
            changed = datetime.fromtimestamp(stat.st_mtime, UTC)
            found.append(SiteLog(source=source, size=stat.st_size, changed_at=changed))
    return found


def _file(folders: HostFolders, site: SiteRow, source: LogSource) -> Path:
    return folders.site_logs / site.account.name / f"{source.value}.log"
