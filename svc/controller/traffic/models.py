"""The API's models of traffic. Every figure is a lower bound; `resets`, `samples` and `first_at` say why it may be too
low (docs/traffic.md)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.registry.operation import Model
from svc.registry.paging import Page
from svc.registry.shapes import Shape
from svc_actors.controller.traffic.enforcement import Decided
from svc_actors.controller.traffic.periods import Period, period_of, utc_now
from svc_actors.controller.traffic.policy import Policy, TrafficAction, TrafficDirection
from svc_actors.controller.traffic.readings import Month
from svc_actors.store import Record
from svc_common.errors import wrong_field

AskedPeriod = Annotated[
    Annotated[str, Shape(r"[1-9][0-9]{3}-(0[1-9]|1[0-2])", "a month such as 2026-02")] | None,
    Field(description="A month of UTC, YYYY-MM; the current one by default."),
]


def requested_period(text: str | None) -> Period:
    """The requested month, or the current one. Raises `invalid` for a month that has not started."""
    present = period_of(utc_now())
    if text is None:
        return present
    if text > present:
        raise wrong_field("period", f"the month has not started: it is {present}")
    return Period(text)


class TrafficMonth(Model):
    """Bytes that the guest received and sent in a month. If `samples` is 0, nothing was read."""

    period: str
    received_bytes: int
    sent_bytes: int
    resets: int
    samples: int
    first_at: datetime | None

    @classmethod
    def of(cls, month: Month) -> TrafficMonth:
        return cls(
            period=month.period,
            received_bytes=month.received_bytes,
            sent_bytes=month.sent_bytes,
            resets=month.resets,
            samples=month.samples,
            first_at=month.first_at,
        )


class TrafficState(StrEnum):
    UNLIMITED = "unlimited"
    WITHIN = "within"
    EXCEEDED = "exceeded"


class TrafficPosition(Model):
    """A machine's transfer in a month, compared with its allowance. `counted_bytes`: the transfer in the plan's
    `direction`; `percent` of the allowance; `action`: what the plan does to machines that exceed it."""

    counted_bytes: int
    allowance_bytes: int | None
    percent: float | None
    direction: TrafficDirection
    action: TrafficAction
    throttle_mbps: int | None
    state: TrafficState
    resets: int
    samples: int
    first_at: datetime | None

    @classmethod
    def of(cls, policy: Policy, month: Month) -> TrafficPosition:
        counted = policy.counted(month.received_bytes, month.sent_bytes)
        return cls(
            counted_bytes=counted,
            allowance_bytes=policy.allowance_bytes,
            percent=percent_of(policy, counted),
            direction=policy.direction,
            action=policy.action,
            throttle_mbps=policy.throttle_mbps if policy.action is TrafficAction.THROTTLE else None,
            state=state_of(policy, counted),
            resets=month.resets,
            samples=month.samples,
            first_at=month.first_at,
        )


def state_of(policy: Policy, counted_bytes: int) -> TrafficState:
    if policy.allowance_bytes is None:
        return TrafficState.UNLIMITED
    return TrafficState.EXCEEDED if policy.exceeded(counted_bytes) else TrafficState.WITHIN


def percent_of(policy: Policy, counted_bytes: int) -> float | None:
    """Rounded down to a tenth: 100 means used up, and 99.9 does not."""
    if policy.allowance_bytes is None:
        return None
    return counted_bytes * 1000 // policy.allowance_bytes / 10


class TrafficDecision(Model):
    """A line of the enforcement history. `lift` ends the previous decision; `period` is the month that the decision
    concerns."""

    id: int
    vm_id: UUID
    vm_name: str
    period: str
    action: Decided
    throttle_mbps: int | None
    at: datetime
    counted_bytes: int
    allowance_bytes: int | None
    reason: str

    @classmethod
    def of(cls, row: Record) -> TrafficDecision:
        return cls(**{name: row[name] for name in cls.model_fields if name != "action"}, action=Decided(row["action"]))


class VMTraffic(Model):
    """The traffic of one machine: its position in the period, its whole enforcement history and its last twelve months,
    both newest first."""

    vm_id: UUID
    period: str
    position: TrafficPosition
    history: list[TrafficDecision]
    months: list[TrafficMonth]


class TrafficUse(Model):
    """One machine in a month. `plan` is its plan's name; `node_id` is for staff and administrators; `deleted_at` is set
    if the machine was deleted after it had transferred something in this month."""

    vm_id: UUID
    vm_name: str
    project_id: UUID
    node_id: UUID | None
    plan: str | None
    deleted_at: datetime | None
    received_bytes: int
    sent_bytes: int
    counted_bytes: int
    allowance_bytes: int | None
    percent: float | None
    direction: TrafficDirection
    action: TrafficAction
    state: TrafficState
    resets: int
    samples: int
    first_at: datetime | None


class TrafficPage(Page[TrafficUse]):
    """`received_bytes` and `sent_bytes` are the totals of every machine that the caller may see, on all pages;
    `periods`: the months with figures, newest first; `decisions` the last twenty."""

    period: str
    periods: list[str]
    received_bytes: int
    sent_bytes: int
    decisions: list[TrafficDecision]
