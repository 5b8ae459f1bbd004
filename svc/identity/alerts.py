"""Alerts: what an operator must look at. Acknowledging one does not close it: it closes when its cause has ended."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, joined, paginate
from svc.registry.principal import Access, Principal
from svc.registry.realm import Realm
from svc.registry.scopes import Scope
from svc_actors.alerts import Severity, announce_alert
from svc_actors.store import Record, Target, Transaction, audit
from svc_common.errors import not_found

operations = Operations[IdentityServices]()


class Alert(Model):
    """`key` names what the alert is about; at most one alert of a key is open. Customers see the alerts about their own
    machines, with a message for customers, and whether a member of the project has acknowledged them."""

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
    def of(cls, row: Record, principal: Principal) -> Alert:
        shown = {name: row[name] for name in cls.model_fields}
        if principal.is_operator:
            return cls(**shown)
        theirs = {
            "message": row["told"],
            "acknowledged_at": row["customer_acknowledged_at"],
            "acknowledged_by": row["customer_acknowledged_by"],
        }
        return cls(**shown | theirs)


def visible_alerts(principal: Principal, realm: Realm) -> Condition:
    """The open alerts that the caller may see, as a condition on `alerts`."""
    if principal.is_operator:
        return Condition("alerts.closed_at IS NULL")
    own = f"alerts.project_id IN ({realm.projects_of('$1')})"
    return Condition(f"alerts.closed_at IS NULL AND {own}", (principal.user_id,))


class AlertList(PageRequest):
    """Sorted by severity, alerts of one severity are in the order in which they were opened."""

    severity: Severity | None = None


class AlertRequest(Request):
    id: UUID


@operations.declare(
    "alert.list",
    "List open alerts, most severe and newest first; customers see those about their own machines",
    Route.get("/alerts"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("severity", "message", "raised=opened_at", "id"),
)
async def list_alerts(context: Context[IdentityServices], request: AlertList) -> Page[Alert]:
    principal = context.principal
    words = ("alerts.message", "alerts.key") if principal.is_operator else ("alerts.told",)
    rows, total = await paginate(
        context.services.database,
        select="SELECT alerts.* FROM alerts",
        source="alerts",
        where=[
            visible_alerts(principal, context.services.realm),
            equals("alerts.severity", request.severity),
            contains(request.q, *words),
        ],
        sortable={
            "severity": "ROW(alerts.severity = 'critical', alerts.opened_at)",
            "opened_at": "alerts.opened_at",
        },
        default_sort="-severity",
        request=request,
        tie="alerts.id",
    )
    return Page[Alert].of([Alert.of(row, principal) for row in rows], total, request)


@operations.declare(
    "alert.ack",
    "Acknowledge an alert",
    Route.post("/alerts/{id}/ack"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def acknowledge(context: Context[IdentityServices], request: AlertRequest) -> Alert:
    """Mark an alert as seen. The first person to acknowledge it is recorded, separately for the provider and for the
    project."""
    principal = context.principal
    whose = "acknowledged" if principal.is_operator else "customer_acknowledged"
    visible = joined([visible_alerts(principal, context.services.realm)], first=3)
    async with context.services.database.transaction() as tx:
        row = await tx.fetchrow(
            f"""UPDATE alerts SET {whose}_at = coalesce({whose}_at, now()), {whose}_by = coalesce({whose}_by, $2)
                WHERE id = $1 AND {visible.sql} RETURNING *""",
            request.id,
            principal.user_id,
            *visible.args,
        )
        if row is None:
            raise not_found("There is no such open alert.")
        await announce_alert(tx, row)
        await audit.record(tx, context.caller, Target("alert", request.id, row["key"], row["project_id"]))
    return Alert.of(row, principal)


async def forget_who_acknowledged(tx: Transaction, user_id: UUID) -> None:
    """Remove a person's name from the alerts that they acknowledged; the alerts stay acknowledged."""
    await tx.execute("UPDATE alerts SET acknowledged_by = NULL WHERE acknowledged_by = $1", user_id)
    await tx.execute("UPDATE alerts SET customer_acknowledged_by = NULL WHERE customer_acknowledged_by = $1", user_id)
