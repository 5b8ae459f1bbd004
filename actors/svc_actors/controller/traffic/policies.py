"""The traffic policies of plans, by the month from which they apply.

A policy is stored with its first month, and in each month the latest policy that has started is in force. So a policy
that was postponed to the next month takes effect by itself, even if no process runs at that moment, and a clock that is
set back finds the policy of that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from svc_actors.controller.traffic.periods import Period, next_period, period_of, start_of
from svc_actors.controller.traffic.policy import (
    UNLIMITED,
    Policy,
    PolicyChange,
    TrafficAction,
    TrafficDirection,
    change,
    differences,
)
from svc_actors.store import Caller, Queryable, Record, Target, Transaction, audit
from svc_common.errors import not_found


def policies(placeholder: str) -> str:
    """SQL for the policy of every plan that has one in the month given by the placeholder: columns plan_id,
    effective_from, allowance_gib, direction, action, throttle_mbps."""
    return f"""(SELECT DISTINCT ON (plan_id) * FROM plan_traffic WHERE effective_from <= {placeholder}
                ORDER BY plan_id, effective_from DESC)"""


def as_policy(row: Record) -> Policy:
    """The policy of a row with the columns of `policies`; no limit if they are NULL."""
    if row["action"] is None:
        return UNLIMITED
    return Policy(
        allowance_gib=row["allowance_gib"],
        direction=TrafficDirection(row["direction"]),
        action=TrafficAction(row["action"]),
        throttle_mbps=row["throttle_mbps"],
    )


async def policy_of(queryable: Queryable, plan_id: UUID | None, period: Period) -> Policy:
    """The policy of a plan in that month; without a plan there is no limit."""
    row = await queryable.fetchrow(
        """SELECT * FROM plan_traffic WHERE plan_id = $1 AND effective_from <= $2
           ORDER BY effective_from DESC LIMIT 1""",
        plan_id,
        period,
    )
    return UNLIMITED if row is None else as_policy(row)


@dataclass(frozen=True)
class PolicySet:
    """The result of setting a policy: the policy is in force in full from `effective_from` on. `machines`: how many
    machines have the plan. `withdrawn`: the month of a policy that was decided earlier and will not take effect."""

    before: Policy
    change: PolicyChange
    effective_from: datetime
    machines: int
    withdrawn: Period | None

    @property
    def note(self) -> str:
        """A sentence about what takes effect when."""
        now = differences(self.before, self.change.now)
        later = differences(self.change.now, self.change.later) if self.change.later is not None else []
        said = []
        if now:
            said.append(f"At once: {'; '.join(now)}.")
        if later:
            said.append(f"From {self.effective_from.day} {self.effective_from:%B %Y} on (UTC): {'; '.join(later)}.")
            said.append(
                "Tighter limits start with the next month, so that no machine exceeds a limit that it did not have."
            )
        if self.withdrawn is not None:
            said.append(f"The change decided for {start_of(self.withdrawn):%B %Y} is withdrawn.")
        return " ".join(said) or "Nothing changes."


async def set_policy(tx: Transaction, caller: Caller, plan_id: UUID, policy: Policy, *, now: datetime) -> PolicySet:
    """Set the plan's policy: members that loosen it apply at once, the others from the next month on, replacing any
    policy that was decided for that month. Locks the plan; the caller calls `enforce_plan` to lift sanctions. Raises
    not_found."""
    plan = await tx.fetchrow("SELECT id, slug FROM plans WHERE id = $1 FOR NO KEY UPDATE", plan_id)
    if plan is None:
        raise not_found("There is no such plan.")
    period = period_of(now)
    before = await policy_of(tx, plan_id, period)
    machines = await tx.fetchval("SELECT count(*) FROM vms WHERE plan_id = $1 AND deleted_at IS NULL", plan_id)
    changed = change(before, policy, in_use=machines > 0)
    pending = await tx.fetchrow(
        "DELETE FROM plan_traffic WHERE plan_id = $1 AND effective_from > $2 RETURNING *", plan_id, period
    )
    if changed.now != before:
        await _write(tx, plan_id, period, changed.now)
    if changed.later is not None:
        await _write(tx, plan_id, next_period(period), changed.later)
    effective_from = now if changed.later is None else start_of(next_period(period))
    await audit.record(
        tx,
        caller,
        Target("plan", plan_id, plan["slug"]),
        {
            "before": _plain(before),
            "now": _plain(changed.now),
            "later": _plain(changed.later) if changed.later is not None else None,
            "effective_from": effective_from.isoformat(),
        },
    )
    withdrawn = Period(pending["effective_from"]) if pending and as_policy(pending) != changed.later else None
    return PolicySet(before, changed, effective_from, machines, withdrawn)


async def _write(tx: Transaction, plan_id: UUID, period: Period, policy: Policy) -> None:
    await tx.execute(
        """INSERT INTO plan_traffic (plan_id, effective_from, allowance_gib, direction, action, throttle_mbps)
           VALUES ($1, $2, $3, $4, $5, $6)
           ON CONFLICT (plan_id, effective_from) DO UPDATE SET allowance_gib = excluded.allowance_gib,
               direction = excluded.direction, action = excluded.action, throttle_mbps = excluded.throttle_mbps""",
        plan_id,
        period,
        policy.allowance_gib,
        policy.direction.value,
        policy.action.value,
        policy.throttle_mbps,
    )


def _plain(policy: Policy) -> dict[str, object]:
    return {
        "traffic_gib": policy.allowance_gib,
        "traffic_direction": policy.direction.value,
        "traffic_action": policy.action.value,
        "traffic_throttle_mbps": policy.throttle_mbps,
    }
