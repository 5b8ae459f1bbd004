"""The server's identity and contents: `svc status`."""

from __future__ import annotations

import socket
from datetime import datetime
from importlib.metadata import version
from typing import Literal
from uuid import UUID

from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope

operations = Operations[Panel]()


class ServerStatus(Model):
    """`sites` and `jobs`: how many there are in each status."""

    hostname: str
    install_id: UUID
    installed_at: datetime
    version: str
    edition: Literal["beta"]
    url: str
    sites: dict[str, int]
    jobs: dict[str, int]
    open_alerts: int


@operations.declare(
    "server.status",
    "What this server is, and how many sites and jobs it has",
    Route.get("/server/status"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("status",),
)
async def status(context: Context[Panel], request: Empty) -> ServerStatus:
    services = context.services
    row = await services.database.fetchone(
        """
        SELECT install_id, installed_at,
               (SELECT coalesce(jsonb_object_agg(status, number), '{}')
                FROM (SELECT status, count(*) AS number FROM sites GROUP BY status) AS counted) AS sites,
               (SELECT coalesce(jsonb_object_agg(status, number), '{}')
                FROM (SELECT status, count(*) AS number FROM jobs GROUP BY status) AS counted) AS jobs,
               (SELECT count(*) FROM alerts WHERE closed_at IS NULL) AS open_alerts
        FROM panel_installation
        """
    )
    return ServerStatus(
        hostname=socket.gethostname(),
        install_id=row["install_id"],
        installed_at=row["installed_at"],
        version=version("svc"),
        edition="beta",
        url=services.config.public_url,
        sites=row["sites"],
        jobs=row["jobs"],
        open_alerts=row["open_alerts"],
    )
