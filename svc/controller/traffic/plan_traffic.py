"""The traffic policy of a plan: a looser limit applies at once, a tighter one from the next month."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines.plans import Plan, shown_plan
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.traffic.enforcement import enforce_plan
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.controller.traffic.policies import set_policy
from svc_actors.controller.traffic.policy import Policy, TrafficAction, TrafficDirection
from svc_common.errors import wrong_field

operations = Operations[Controller]()

Gib = Annotated[int, Field(ge=1, le=100_000_000)]
Mbps = Annotated[int, Field(ge=1, le=1_000_000)]


class PlanTrafficRequest(Request):
    """The whole policy: what is left out is its default, not what was there. `traffic_gib` null is no limit.
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
    """`effective_from`: when all of the policy is in force. `deferred`: that is not at once. `machines`: how many have
    the plan. `note`: what happens when, in words."""

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
