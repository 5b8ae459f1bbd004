"""Enforces traffic allowances: imposes sanctions on machines that have used theirs up, and lifts them.

The sanction in force against a machine is its standing decision. `enforce` brings this decision in line with the plan's
policy and the traffic of the current period, whether the figures, the policy, the plan or the period has changed.

Invariants:
- a decision is written in one transaction with its effect (the machine's throttle or isolation, `network_changed`), its
  history row, an audit row by the service itself, and its event; it is not written again while it stands;
- at most one decision per machine stands (a unique index). It is made under the locks of plan and machine, so that a
  concurrent loosening of the policy is respected;
- no sanction affects a machine's power or disks. So a machine whose node cannot limit rates is reported instead of
  throttled: with a throttle, its host would refuse the whole network, and with it the next start.

Why: docs/decisions/0035-traffic.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Final
from uuid import UUID

from svc_actors.alerts import CustomerNotice, close_alert, raise_alert
from svc_actors.controller.machines.records import announce_machine
from svc_actors.controller.networking.changes import restrict_traffic
from svc_actors.controller.traffic.periods import Period, period_of
from svc_actors.controller.traffic.policies import as_policy, policies, policy_of
from svc_actors.controller.traffic.policy import GIB, Policy, Sanction, TrafficAction, TrafficDirection
from svc_actors.controller.traffic.readings import month_of
from svc_actors.store import Database, Queryable, Record, Target, Transaction, audit, service_itself

_MOST_BYTES: Final = 2**63 - 1
_AT_ONCE: Final = 50


class Decided(StrEnum):
    """The decision in one line of the enforcement history. `lift` ends the decision that stood before."""

    REPORT = "report"
    THROTTLE = "throttle"
    SUSPEND = "suspend"
    LIFT = "lift"


@dataclass(frozen=True)
class Standing:
    sanction: Sanction
    period: Period


@dataclass(frozen=True)
class MachineTraffic:
    """A machine, its policy and counted traffic of the current period, and the sanction in force."""

    id: UUID
    name: str
    project_id: UUID
    plan_id: UUID | None
    deleted: bool
    policy: Policy
    counted_bytes: int
    standing: Standing | None
    can_be_throttled: bool
    """False only if its node has reported that it cannot limit rates."""

    def required_standing(self, period: Period) -> Standing | None:
        """The decision that must be in force; None for no sanction."""
        sanction = None if self.deleted else self.policy.sanction(self.counted_bytes)
        if sanction is not None and sanction.action is TrafficAction.THROTTLE and not self.can_be_throttled:
            sanction = Sanction(TrafficAction.REPORT)
        return None if sanction is None else Standing(sanction, period)


@dataclass(frozen=True)
class EnforcementCounts:
    """How many machines got a sanction, and for how many it was lifted."""

    sanctioned: int = 0
    lifted: int = 0

    def __add__(self, other: EnforcementCounts) -> EnforcementCounts:
        return EnforcementCounts(self.sanctioned + other.sanctioned, self.lifted + other.lifted)


async def enforce(database: Database, now: datetime) -> EnforcementCounts:
    """Bring every machine's standing decision up to date, a few machines of one plan at a time. Safe to repeat, also
    from several processes at once."""
    of_plans: dict[UUID | None, list[UUID]] = {}
    for machine in await _out_of_date(database, period_of(now), None):
        of_plans.setdefault(machine.plan_id, []).append(machine.id)
    done = EnforcementCounts()
    for plan_id, vm_ids in of_plans.items():
        for start in range(0, len(vm_ids), _AT_ONCE):
            part = vm_ids[start : start + _AT_ONCE]
            done += await database.transact(partial(_enforce_some, plan_id=plan_id, vm_ids=part, now=now))
    return done


async def _enforce_some(
    tx: Transaction, plan_id: UUID | None, vm_ids: Sequence[UUID], now: datetime
) -> EnforcementCounts:
    await tx.execute("SELECT FROM plans WHERE id = $1 FOR SHARE", plan_id)
    return await _bring_up_to_date(tx, plan_id, vm_ids, now)


async def enforce_plan(tx: Transaction, plan_id: UUID, now: datetime) -> EnforcementCounts:
    """As `enforce`, for the machines of one plan. The caller has locked the plan's row and may have changed it."""
    machines = await _out_of_date(tx, period_of(now), plan_id)
    return await _bring_up_to_date(tx, plan_id, [machine.id for machine in machines], now)


async def _bring_up_to_date(
    tx: Transaction, plan_id: UUID | None, vm_ids: Sequence[UUID], now: datetime
) -> EnforcementCounts:
    if not vm_ids:
        return EnforcementCounts()
    await tx.execute("SELECT FROM vms WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE", sorted(vm_ids))
    done = EnforcementCounts()
    for machine in await _out_of_date(tx, period_of(now), plan_id, vm_ids):
        required = machine.required_standing(period_of(now))
        await _decide(tx, machine, required, now)
        done += EnforcementCounts(lifted=1) if required is None else EnforcementCounts(sanctioned=1)
    return done


async def _out_of_date(
    queryable: Queryable, period: Period, plan_id: UUID | None, vm_ids: Sequence[UUID] | None = None
) -> list[MachineTraffic]:
    """The machines whose sanction in force differs from the required one; of one plan, or among `vm_ids`, if given."""
    rows = await queryable.fetch(
        f"""
        SELECT vms.id, vms.name, vms.project_id, vms.plan_id, vms.deleted_at,
               policy.allowance_gib, policy.direction, policy.action, policy.throttle_mbps,
               coalesce(used.received, 0) AS received, coalesce(used.sent, 0) AS sent,
               standing.action AS standing_action, standing.throttle_mbps AS standing_mbps,
               standing.period AS standing_period,
               NOT coalesce(nodes.facts->'network_lacks' ? 'rate', false) AS can_be_throttled
        FROM vms
        LEFT JOIN nodes ON nodes.id = vms.node_id
        LEFT JOIN {policies("$1")} policy ON policy.plan_id = vms.plan_id
        LEFT JOIN (SELECT vm_id, sum(received) AS received, sum(sent) AS sent
                   FROM traffic_readings WHERE period = $1 GROUP BY vm_id) used ON used.vm_id = vms.id
        LEFT JOIN traffic_decisions standing ON standing.vm_id = vms.id AND standing.standing
        WHERE ($2::uuid IS NULL OR vms.plan_id = $2) AND ($3::uuid[] IS NULL OR vms.id = ANY($3))
          AND (standing.id IS NOT NULL OR (vms.deleted_at IS NULL AND policy.allowance_gib * $4::numeric <=
                  used.sent + CASE policy.direction WHEN 'both' THEN used.received ELSE 0 END))
        ORDER BY vms.id
        """,
        period,
        plan_id,
        None if vm_ids is None else list(vm_ids),
        GIB,
    )
    return [machine for machine in map(_as_traffic, rows) if machine.required_standing(period) != machine.standing]


def _as_traffic(row: Record) -> MachineTraffic:
    policy = as_policy(row)
    standing = None
    if row["standing_action"] is not None:
        sanction = Sanction(TrafficAction(row["standing_action"]), row["standing_mbps"])
        standing = Standing(sanction, Period(row["standing_period"]))
    return MachineTraffic(
        id=row["id"],
        name=row["name"],
        project_id=row["project_id"],
        plan_id=row["plan_id"],
        deleted=row["deleted_at"] is not None,
        policy=policy,
        counted_bytes=policy.counted(int(row["received"]), int(row["sent"])),
        standing=standing,
        can_be_throttled=row["can_be_throttled"],
    )


async def _decide(tx: Transaction, machine: MachineTraffic, standing: Standing | None, now: datetime) -> None:
    """Replace the standing decision by `required_standing`, with its effect, history, audit row and event."""
    action = Decided(standing.sanction.action.value) if standing is not None else Decided.LIFT
    mbps = standing.sanction.throttle_mbps if standing is not None else None
    period, policy, counted = period_of(now), machine.policy, machine.counted_bytes
    reason = _lifted_because(machine, period) if standing is None else _sanctioned_because(machine, period)
    if machine.standing is not None:
        await tx.execute("UPDATE traffic_decisions SET standing = false WHERE vm_id = $1 AND standing", machine.id)
        await close_alert(tx, traffic_alert(machine.id, machine.standing.period))
        if standing is None and machine.standing.period != period:
            period = machine.standing.period
            policy = await policy_of(tx, machine.plan_id, period)
            month = await month_of(tx, machine.id, period)
            counted = policy.counted(month.received_bytes, month.sent_bytes)
    await tx.execute(
        """INSERT INTO traffic_decisions
               (vm_id, period, action, throttle_mbps, at, counted_bytes, allowance_bytes, reason, standing)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)""",
        machine.id,
        period,
        action.value,
        mbps,
        now,
        min(counted, _MOST_BYTES),
        policy.allowance_bytes,
        reason,
        standing is not None,
    )
    await audit.record(
        tx,
        service_itself("traffic.enforce"),
        Target("vm", machine.id, machine.name, machine.project_id),
        {
            "action": action.value,
            "period": period,
            "counted_bytes": counted,
            "allowance_bytes": policy.allowance_bytes,
            "throttle_mbps": mbps,
            "reason": reason,
        },
    )
    if action is Decided.REPORT:
        await raise_alert(
            tx,
            traffic_alert(machine.id, period),
            f"Machine {machine.name}: {reason}",
            resource_kind="vm",
            resource_id=machine.id,
            notice=CustomerNotice(machine.project_id, f"Machine {machine.name}: {reason}"),
        )
    await restrict_traffic(tx, machine.id, throttle_mbps=mbps, isolated=action is Decided.SUSPEND)
    await announce_machine(tx, machine.id)


def traffic_alert(vm_id: UUID, period: Period) -> str:
    return f"traffic:{vm_id}:{period}"


def _sanctioned_because(machine: MachineTraffic, period: Period) -> str:
    policy = machine.policy
    counted = "Sent" if policy.direction is TrafficDirection.OUTBOUND else "Sent and received"
    throttled = f"it is throttled to {policy.throttle_mbps} Mbit/s"
    done = {
        TrafficAction.REPORT: "it is reported",
        TrafficAction.THROTTLE: throttled if machine.can_be_throttled else "its host can hold no rate: it is reported",
        TrafficAction.SUSPEND: "its traffic is suspended",
    }
    used = f"{machine.counted_bytes / GIB:.1f} GiB of {policy.allowance_gib} GiB"
    return f"{counted} {used} in {period}; {done[policy.action]} until the month is over."


def _lifted_because(machine: MachineTraffic, period: Period) -> str:
    if machine.deleted:
        return "The machine is deleted."
    if machine.standing is not None and machine.standing.period != period:
        return f"The month {machine.standing.period} is over."
    if machine.policy.allowance_gib is None:
        return "Its traffic is no longer limited."
    return f"Its allowance is {machine.policy.allowance_gib} GiB now, which is not used up."
