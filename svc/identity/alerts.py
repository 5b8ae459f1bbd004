"""Alerts: what an operator must look at. Seen is not over: an alert closes when what it is about has ended."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.alerts import Severity, announce_alert
from svc_actors.errors import not_found
from svc_actors.store import Record, audit

operations = Operations[IdentityServices]()


class Alert(Model):
    """`key` names what the alert is about; of one key at most one is open."""

    id: UUID
    key: str
    severity: Severity
    message: str
    resource_kind: str | None
    resource_id: str | None
    opened_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: UUID | None
    closed_at: datetime | None

    @classmethod
    def of(cls, row: Record) -> Alert:
        return cls(**{name: row[name] for name in cls.model_fields})


class AlertList(PageRequest):
    """Sorted by severity, alerts of one severity are in the order in which they were opened."""

    severity: Severity | None = None


class AlertRequest(Request):
    id: UUID


@operations.declare(
    "alert.list",
    "List open alerts, the gravest and newest first",
    Route.get("/alerts"),
    access=Access.STAFF,
    scope=Scope.READ,
    columns=("severity", "message", "raised=opened_at", "id"),
)
async def list_alerts(context: Context[IdentityServices], request: AlertList) -> Page[Alert]:
    rows, total = await paginate(
        context.services.database,
        select="SELECT alerts.* FROM alerts",
        where=[
            Condition("alerts.closed_at IS NULL"),
            equals("alerts.severity", request.severity),
            contains(request.q, "alerts.message", "alerts.key"),
        ],
        sortable={
            "severity": "ROW(alerts.severity = 'critical', alerts.opened_at)",
            "opened_at": "alerts.opened_at",
        },
        default_sort="-severity",
        request=request,
        tie="alerts.id",
    )
    return Page[Alert].of([Alert.of(row) for row in rows], total, request)


@operations.declare(
    "alert.ack", "Say that an alert was seen", Route.post("/alerts/{id}/ack"), access=Access.STAFF, scope=Scope.WRITE
)
async def acknowledge(context: Context[IdentityServices], request: AlertRequest) -> Alert:
    """Somebody has seen it. The first one stays the one who did."""
    async with context.services.database.transaction() as tx:
        row = await tx.fetchrow(
            """UPDATE alerts SET acknowledged_at = coalesce(acknowledged_at, now()),
                                 acknowledged_by = coalesce(acknowledged_by, $2)
               WHERE id = $1 AND closed_at IS NULL RETURNING *""",
            request.id,
            context.principal.user_id,
        )
        if row is None:
            raise not_found("There is no such open alert.")
        await announce_alert(tx, row)
        await audit.record(
            tx,
            context.caller,
            target_kind="alert",
            target_id=str(request.id),
            target_name=row["key"],
            project_id=None,
        )
    return Alert.of(row)
