"""The traffic policy of a plan and the rules for changing it: pure functions without clock and database.

Invariants (specification, Traffic and backup schedules):
- no machine is in breach of a limit that did not exist yesterday: each member of a change that loosens the policy
  applies at once, and each that tightens it from the next period on. So a change never makes things worse for a machine
  in the current period, whatever its traffic;
- if no machine has the plan, or the new policy has no limit, a change applies at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GIB: Final = 2**30


class TrafficDirection(StrEnum):
    """The traffic that counts: what the guest sends, or what it sends and receives."""

    OUTBOUND = "outbound"
    BOTH = "both"


class TrafficAction(StrEnum):
    """The action against a machine that has used up its allowance, the mildest first. `suspend` stops its traffic; the
    machine itself keeps running."""

    REPORT = "report"
    THROTTLE = "throttle"
    SUSPEND = "suspend"


_SEVERITY: Final = {action: place for place, action in enumerate(TrafficAction)}


@dataclass(frozen=True)
class Sanction:
    """A sanction against a machine. `throttle_mbps` is set for a throttle, and only then."""

    action: TrafficAction
    throttle_mbps: int | None = None


@dataclass(frozen=True)
class Policy:
    """An allowance in GiB a month, or None for no limit. A throttle needs a rate in Mbit/s (ValueError without one);
    for other actions a rate is stored without effect."""

    allowance_gib: int | None = None
    direction: TrafficDirection = TrafficDirection.OUTBOUND
    action: TrafficAction = TrafficAction.REPORT
    throttle_mbps: int | None = None

    def __post_init__(self) -> None:
        if self.action is TrafficAction.THROTTLE and self.throttle_mbps is None:
            raise ValueError("a throttle needs a rate")

    @property
    def allowance_bytes(self) -> int | None:
        return None if self.allowance_gib is None else self.allowance_gib * GIB

    def counted(self, received_bytes: int, sent_bytes: int) -> int:
        return sent_bytes if self.direction is TrafficDirection.OUTBOUND else received_bytes + sent_bytes

    def exceeded(self, counted_bytes: int) -> bool:
        """Whether the allowance is used up; exactly reaching it counts."""
        return self.allowance_bytes is not None and counted_bytes >= self.allowance_bytes

    def sanction(self, counted_bytes: int) -> Sanction | None:
        """The sanction for a machine with this traffic, if any."""
        if not self.exceeded(counted_bytes):
            return None
        return Sanction(self.action, self.throttle_mbps if self.action is TrafficAction.THROTTLE else None)


UNLIMITED: Final = Policy()


@dataclass(frozen=True)
class PolicyChange:
    """The policy that applies from now on, and the one from the next period on if it differs."""

    now: Policy
    later: Policy | None


def change(current: Policy, desired: Policy, *, in_use: bool) -> PolicyChange:
    """Computes how `desired` replaces `current`. `in_use`: machines have the plan."""
    now = _looser(current, desired) if in_use else desired
    return PolicyChange(now, None if now == desired else desired)


def _looser(current: Policy, wanted: Policy) -> Policy:
    """The policy that takes, for each member, the looser of the two values."""
    if wanted.allowance_gib is None:
        return wanted
    if current.allowance_gib is None:
        return current
    action = min(current.action, wanted.action, key=_SEVERITY.__getitem__)
    rates = [each.throttle_mbps for each in (current, wanted) if each.action is action and each.throttle_mbps]
    return Policy(
        allowance_gib=max(current.allowance_gib, wanted.allowance_gib),
        direction=min(current.direction, wanted.direction, key=lambda each: each is TrafficDirection.BOTH),
        action=action,
        throttle_mbps=max(rates) if action is TrafficAction.THROTTLE else wanted.throttle_mbps,
    )


def differences(before: Policy, after: Policy) -> list[str]:
    """The differences of `after` from `before`, as phrases for one sentence."""
    words: list[str] = []
    if after.allowance_gib != before.allowance_gib:
        gib = after.allowance_gib
        words.append("there is no limit" if gib is None else f"the allowance is {gib} GiB a month")
    if after.allowance_gib is None:
        return words
    if after.direction is not before.direction or before.allowance_gib is None:
        both = "what machines send and receive counts"
        words.append("what machines send counts" if after.direction is TrafficDirection.OUTBOUND else both)
    if after.action is TrafficAction.THROTTLE:
        if (after.action, after.throttle_mbps) != (before.action, before.throttle_mbps) or before.allowance_gib is None:
            words.append(f"machines beyond it are throttled to {after.throttle_mbps} Mbit/s")
    elif after.action is not before.action or before.allowance_gib is None:
        words.append("machines beyond it are " + ("reported" if after.action is TrafficAction.REPORT else "suspended"))
    return words
