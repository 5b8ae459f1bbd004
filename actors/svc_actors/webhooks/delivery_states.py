"""What becomes of a delivery, attempt by attempt (hosting-panel-api.md, Webhook delivery status).

    pending    no attempt has had an outcome yet
    retrying   the last attempt failed, and there is another at `next_attempt_at`
    delivered  answered with 2xx; the end
    failed     the sixth attempt failed, or the receiver refused with a status that is not retried; the end

An attempt has an outcome when the receiver has answered, or has not within the deadline. One that a crash cut short has
none: it is made again, with the same delivery id.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

SCHEDULE: Final = (
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
)
"""From the outcome of an attempt to the next one."""
ATTEMPTS: Final = len(SCHEDULE) + 1
_RETRIED: Final = frozenset({408, 429})
"""Of the statuses below 500."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    RETRYING = "retrying"
    FAILED = "failed"


@dataclass(frozen=True)
class Answered:
    """The receiver's status; what it says besides is not looked at."""

    status: int


@dataclass(frozen=True)
class Unanswered:
    """Nobody answered, and why."""

    reason: str


Outcome = Answered | Unanswered


@dataclass(frozen=True)
class Verdict:
    """`pause`: until the next attempt, where there is one."""

    status: DeliveryStatus
    pause: timedelta | None = None


def judge(outcome: Outcome, attempt: int) -> Verdict:
    """What the outcome of the `attempt`th attempt, counted from 1, means. Redirects are not followed, so a 3xx is a
    refusal; Retry-After changes nothing, since the schedule is what receivers and operators can count on."""
    if isinstance(outcome, Answered):
        if 200 <= outcome.status < 300:
            return Verdict(DeliveryStatus.DELIVERED)
        if outcome.status < 500 and outcome.status not in _RETRIED:
            return Verdict(DeliveryStatus.FAILED)
    if attempt >= ATTEMPTS:
        return Verdict(DeliveryStatus.FAILED)
    return Verdict(DeliveryStatus.RETRYING, SCHEDULE[attempt - 1])
