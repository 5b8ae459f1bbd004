"""Traffic: what machines have transferred, their plans' limits, and the action taken on machines over their limit.

A customer sees their own machines and the totals of these alone. Deleted machines stay in the months in which they have
transferred something, since that is still to be billed.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.machines.finding import named
from svc.controller.machines.models import visible_machine
from svc.controller.machines.plans import Plan, shown_plan
from svc.controller.services import Controller
from svc.controller.traffic.models import (
    AskedPeriod,
    TrafficDecision,
    TrafficMonth,
    TrafficPage,
    TrafficPosition,
    TrafficUse,
    VMTraffic,
    percent_of,
    requested_period,
    state_of,
)
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Nullable, Page, PageRequest, equals, joined, paginate
from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc_actors.controller.traffic.enforcement import enforce_plan
from svc_actors.controller.traffic.periods import Period, next_period, period_of, start_of, until, utc_now
from svc_actors.controller.traffic.policies import as_policy, policies, policy_of, set_policy
from svc_actors.controller.traffic.policy import Policy, TrafficAction, TrafficDirection
from svc_actors.controller.traffic.readings import month_of, months_of
from svc_actors.store import Queryable, Record
from svc_common.errors import wrong_field

operations = Operations[Controller]()

LAST_DECISIONS: Final = 20

_COUNTED: Final = (
    """coalesce(used.sent, 0) + CASE policy.direction WHEN 'both' THEN coalesce(used.received, 0) ELSE 0 END"""
)

# $1 is the period, the argument of the list's first condition (`_in_period`).
_MONTHS: Final = f"""vms
LEFT JOIN plans ON plans.id = vms.plan_id
LEFT JOIN {policies("$1")} policy ON policy.plan_id = vms.plan_id
LEFT JOIN traffic_months used ON used.vm_id = vms.id AND used.period = $1"""

_USE: Final = f"""
SELECT vms.id, vms.name, vms.project_id, vms.node_id, vms.deleted_at, plans.name AS plan_name,
       policy.allowance_gib, policy.direction, policy.action, policy.throttle_mbps,
       coalesce(used.received, 0) AS received, coalesce(used.sent, 0) AS sent,
       {_COUNTED} AS counted,
       coalesce(used.resets + used.ledgers - 1, 0) AS resets, coalesce(used.samples, 0) AS samples, used.first_at
FROM {_MONTHS}"""

_SORTABLE: Final = {
    "vm_name": "vms.name",
    "received_bytes": "coalesce(used.received, 0)",
    "sent_bytes": "coalesce(used.sent, 0)",
    "counted_bytes": _COUNTED,
    "allowance_bytes": Nullable("policy.allowance_gib"),
    "percent": Nullable(f"({_COUNTED}) / policy.allowance_gib"),
    "plan": Nullable("plans.name"),
}

_OF_MACHINES: Final = " JOIN vms ON vms.id = months.vm_id"

_DECISIONS: Final = """SELECT traffic_decisions.*, vms.name AS vm_name
    FROM traffic_decisions JOIN vms ON vms.id = traffic_decisions.vm_id"""

Gib = Annotated[int, Field(ge=1, le=100_000_000)]
Mbps = Annotated[int, Field(ge=1, le=1_000_000)]


class TrafficList(PageRequest):
    period: AskedPeriod = None
    project: UUID | None = None


class VMTrafficRequest(Request):
    id: UUID
    period: AskedPeriod = None


class VMBandwidthRequest(Request):
    id: UUID


@operations.declare(
    "traffic.list",
    "List the traffic of machines in a month, with the allowance of their plans",
    Route.get("/traffic"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("traffic",),
    columns=(
        "vm=vm_name",
        "plan",
        "received=received_bytes",
        "sent=sent_bytes",
        "counted=counted_bytes",
        "allowance=allowance_bytes",
        "percent",
        "state",
        "resets",
    ),
)
async def list_traffic(context: Context[Controller], request: TrafficList) -> TrafficPage:
    database, principal = context.services.database, context.principal
    period = requested_period(request.period)
    own = [visible_projects(principal, "vms.project_id"), equals("vms.project_id", request.project)]
    rows, total = await paginate(
        database,
        select=_USE,
        source=_MONTHS,
        where=[_in_period(period), *own, named(request.q)],
        sortable=_SORTABLE,
        default_sort="-counted_bytes",
        request=request,
        tie="vms.id",
        known_total=_known_total(period) if principal.is_operator and not (request.project or request.q) else None,
    )
    received, sent = await _totals(database, period, own)
    decided = joined(own, first=2)
    decisions = await database.fetch(
        f"{_DECISIONS} WHERE {decided.sql} ORDER BY traffic_decisions.id DESC LIMIT $1", LAST_DECISIONS, *decided.args
    )
    page = Page[TrafficUse].of([_use(row, principal) for row in rows], total, request)
    return TrafficPage(
        **dict(page),
        period=period,
        periods=await _periods(database, own),
        received_bytes=received,
        sent_bytes=sent,
        decisions=[TrafficDecision.of(row) for row in decisions],
    )


@operations.declare(
    "vm.traffic",
    "Show a machine's traffic, its allowance and the enforcement decisions",
    Route.get("/vms/{id}/traffic"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_traffic(context: Context[Controller], request: VMTrafficRequest) -> VMTraffic:
    database = context.services.database
    machine = await visible_machine(database, context.principal, request.id)
    period = requested_period(request.period)
    policy = await policy_of(database, machine["plan_id"], period)
    history = await database.fetch(
        f"{_DECISIONS} WHERE traffic_decisions.vm_id = $1 ORDER BY traffic_decisions.id DESC", request.id
    )
    return VMTraffic(
        vm_id=request.id,
        period=period,
        position=TrafficPosition.of(policy, await month_of(database, request.id, period)),
        history=[TrafficDecision.of(row) for row in history],
        months=await _last_months(database, request.id),
    )


@operations.declare(
    "vm.bandwidth",
    "Show the traffic of a machine in the last twelve months, newest first",
    Route.get("/vms/{id}/bandwidth"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("period", "received=received_bytes", "sent=sent_bytes", "samples", "resets", "first=first_at"),
)
async def show_bandwidth(context: Context[Controller], request: VMBandwidthRequest) -> list[TrafficMonth]:
    await visible_machine(context.services.database, context.principal, request.id)
    return await _last_months(context.services.database, request.id)


async def _last_months(queryable: Queryable, vm_id: UUID) -> list[TrafficMonth]:
    return [TrafficMonth.of(month) for month in await months_of(queryable, vm_id, period_of(utc_now()))]


def _in_period(period: Period) -> Condition:
    """Machines with traffic counted in the month, and machines that exist now and were created before its end. Also has
    the argument $1 of `_MONTHS`."""
    return Condition(
        "$1::text IS NOT NULL AND (used.vm_id IS NOT NULL OR (vms.deleted_at IS NULL AND vms.created_at < $2))",
        (period, start_of(next_period(period))),
    )


def _known_total(period: Period) -> Condition | None:
    """The number of machines in the list of the present month: all existing ones, and deleted ones with traffic counted
    in this month. None for another month."""
    if period != period_of(utc_now()):
        return None
    return Condition(
        """SELECT (SELECT coalesce(sum(number), 0) FROM list_numbers WHERE list = 'vms by node')
                + (SELECT count(*) FROM vms JOIN traffic_months used ON used.vm_id = vms.id AND used.period = $1
                   WHERE vms.deleted_at IS NOT NULL)""",
        (period,),
    )


async def _totals(queryable: Queryable, period: Period, own: list[Condition]) -> tuple[int, int]:
    own_machines = joined(own).args
    condition = joined([Condition("months.period = $1", (period,)), *own])
    row = await queryable.fetchone(
        f"""SELECT coalesce(sum(received), 0) AS received, coalesce(sum(sent), 0) AS sent
                FROM traffic_months months{_OF_MACHINES if own_machines else ""} WHERE {condition.sql}""",
        *condition.args,
    )
    return int(row["received"]), int(row["sent"])


async def _periods(queryable: Queryable, own: list[Condition]) -> list[str]:
    """Every month from the first reading to the present. Only the first month is queried, so not every row is read."""
    present = period_of(utc_now())
    condition = joined(own)
    first = await queryable.fetchval(
        f"SELECT min(period) FROM traffic_months months{_OF_MACHINES if condition.args else ''} WHERE {condition.sql}",
        *condition.args,
    )
    return list(until(min(Period(first or present), present), present))


def _use(row: Record, principal: Principal) -> TrafficUse:
    policy, counted = as_policy(row), int(row["counted"])
    return TrafficUse(
        vm_id=row["id"],
        vm_name=row["name"],
        project_id=row["project_id"],
        node_id=row["node_id"] if principal.is_operator else None,
        plan=row["plan_name"],
        deleted_at=row["deleted_at"],
        received_bytes=int(row["received"]),
        sent_bytes=int(row["sent"]),
        counted_bytes=counted,
        allowance_bytes=policy.allowance_bytes,
        percent=percent_of(policy, counted),
        direction=policy.direction,
        action=policy.action,
        state=state_of(policy, counted),
        resets=int(row["resets"]),
        samples=int(row["samples"]),
        first_at=row["first_at"],
    )


# The traffic policy of a plan: a looser limit applies at once, a tighter one from the next month.
class PlanTrafficRequest(Request):
    """The whole policy: a field left out gets its default, not its previous value. `traffic_gib` null is no limit.
    `throttle` needs `traffic_throttle_mbps`."""

    id: UUID
    traffic_gib: Annotated[Gib | None, Field(description="Allowance a month in GiB; null is no limit.")]
    traffic_direction: Annotated[
        TrafficDirection, Field(description="The traffic that counts: outgoing, or both directions.")
    ] = TrafficDirection.OUTBOUND
    traffic_action: Annotated[TrafficAction, Field(description="What happens to a machine that exceeds it.")] = (
        TrafficAction.REPORT
    )
    traffic_throttle_mbps: Annotated[Mbps | None, Field(description="Rate of a throttle in Mbit/s.")] = None


class PlanTrafficResult(Model):
    """`effective_from`: when the whole policy is in force. `deferred`: that is later than now. `machines`: how many
    have the plan. `note` says in words what happens when."""

    plan: Plan
    effective_from: datetime
    machines: int
    deferred: bool
    note: str


@operations.declare(
    "plan.traffic",
    "Set the traffic allowance of a plan; tighter limits start with the next month",
    Route.put("/plans/{id}/traffic"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def set_plan_traffic(context: Context[Controller], request: PlanTrafficRequest) -> PlanTrafficResult:
    if request.traffic_action is TrafficAction.THROTTLE and request.traffic_throttle_mbps is None:
        raise wrong_field("traffic_throttle_mbps", "a throttle needs a rate in Mbit/s")
    wanted = Policy(
        allowance_gib=request.traffic_gib,
        direction=request.traffic_direction,
        action=request.traffic_action,
        throttle_mbps=request.traffic_throttle_mbps,
    )
    now = utc_now()
    async with context.services.database.transaction() as tx:
        done = await set_policy(tx, context.caller, request.id, wanted, now=now)
        enforced = await enforce_plan(tx, request.id, now)
        plan = await shown_plan(tx, request.id)
    lifted = enforced.lifted
    let_go = f" {lifted} machine{' is' if lifted == 1 else 's are'} within the allowance again." if lifted else ""
    return PlanTrafficResult(
        plan=plan,
        effective_from=done.effective_from,
        machines=done.machines,
        deferred=done.change.later is not None,
        note=done.note + let_go,
    )
