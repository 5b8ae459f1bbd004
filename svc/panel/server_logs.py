"""The logs of the programs that serve the sites. Administrators only.

The core and the web tier write to standard output, which their supervisor stores: `journalctl -u svc-panel-core`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from svc.panel.log_lines import Containing, LogCursor, LogLines, MostLines, log_part
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_webhost.folders import HostFolders
from svc_webhost.knot.configuration import KnotFolders

operations = Operations[Panel]()


class ServerLogSource(StrEnum):
    WEB_SERVER = "web_server"
    """Errors of nginx itself, for all sites together; errors of a single site are in the site's log."""
    WEB_SERVER_OUTPUT = "web_server_output"
    """The output of nginx at its start, and about configurations that it refused."""
    NAME_SERVER = "name_server"
    KEEPER = "keeper"
    """The keeper's log: which programs it has started, which have ended, and which were restarted."""


class ServerLogLines(LogLines):
    source: ServerLogSource


class ServerLogReadRequest(Request):
    """`after` is the cursor of an earlier answer; without it, the last lines are returned."""

    source: ServerLogSource = ServerLogSource.WEB_SERVER
    q: Containing | None = None
    limit: MostLines = 100
    after: LogCursor | None = None


@operations.declare(
    "server.log_read",
    "Read a log of this server's programs, from a cursor on",
    Route.get("/server/logs/read"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("server", "logs"),
)
async def read_on(context: Context[Panel], request: ServerLogReadRequest) -> ServerLogLines:
    log = _file(context.services.config.folders, request.source)
    part = await log_part(log, after=request.after, text=request.q, most=request.limit)
    return ServerLogLines(source=request.source, lines=part.lines, cursor=part.cursor, more=part.more, gap=part.gap)


def _file(folders: HostFolders, source: ServerLogSource) -> Path:
    match source:
        case ServerLogSource.WEB_SERVER:
            return folders.nginx_log
        case ServerLogSource.WEB_SERVER_OUTPUT:
            return folders.nginx_output
        case ServerLogSource.NAME_SERVER:
            return KnotFolders(folders.knot).log
        case ServerLogSource.KEEPER:
            return folders.keeper_log
