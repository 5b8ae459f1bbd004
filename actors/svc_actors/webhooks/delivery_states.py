"""The states of a delivery, attempt by attempt (specification, Webhook delivery status).

    pending    no attempt has had an outcome yet
    retrying   the last attempt failed, and there is another at `next_attempt_at`
    delivered  answered with 2xx; the end
    failed     the sixth attempt failed, or the receiver refused with a status that is not retried; the end

An attempt has an outcome when the receiver has answered, or the deadline has passed. An attempt that a crash cut short
has none: it is repeated with the same delivery id.
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
"""Pauses between the outcome of an attempt and the next attempt."""
ATTEMPTS: Final = len(SCHEDULE) + 1
_RETRIED: Final = frozenset({408, 429})
"""Statuses below 500 that are retried."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    RETRYING = "retrying"
    FAILED = "failed"


@dataclass(frozen=True)
class Answered:
    """The receiver's status; its body is ignored."""

    status: int


@dataclass(frozen=True)
class Unanswered:
    """The receiver did not answer; `reason` says why."""

    reason: str


Outcome = Answered | Unanswered


@dataclass(frozen=True)
class Verdict:
    """`pause`: until the next attempt; None if there is none."""

    status: DeliveryStatus
    pause: timedelta | None = None


def judge(outcome: Outcome, attempt: int) -> Verdict:
    """The verdict on the outcome of the `attempt`th attempt, counted from 1. Redirects are not followed, so a 3xx is a
    refusal. Retry-After is ignored: receivers and operators rely on the fixed schedule."""
    if isinstance(outcome, Answered):
        if 200 <= outcome.status < 300:
            return Verdict(DeliveryStatus.DELIVERED)
        if outcome.status < 500 and outcome.status not in _RETRIED:
            return Verdict(DeliveryStatus.FAILED)
    if attempt >= ATTEMPTS:
        return Verdict(DeliveryStatus.FAILED)
    return Verdict(DeliveryStatus.RETRYING, SCHEDULE[attempt - 1])
