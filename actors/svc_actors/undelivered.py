"""Answers for messages that an actor did not handle, and for failures that hold an answer within them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from svc_actors.runtime import DeliveryError, Draining, MailboxFull
from svc_common.errors import ServiceError, unavailable

_NOT_BEGUN: Final[Mapping[type[DeliveryError], str]] = {
    MailboxFull: "Too many changes of the same resource are waiting already; nothing was done.",
    Draining: "The service is stopping; nothing was done.",
}


def why_undelivered(error: DeliveryError) -> str:
    """Text for the caller. The runtime's own text would show the name of a class, and a key."""
    return _NOT_BEGUN.get(type(error), "The service failed while doing this; its log says why.")


def undelivered(error: DeliveryError) -> ServiceError | None:
    """The answer for a message that its actor did not accept. None if the handler had started: that is a defect."""
    if type(error) not in _NOT_BEGUN:
        return None
    return unavailable(why_undelivered(error), hint="Try again in 1 s.", details={"retry_after": 1})


def refusal_in(error: BaseException) -> ServiceError | None:
    """The `ServiceError` to answer with: the error itself, or the first one in a nursery's group. None for a defect; a
    group that holds anything else is a defect."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, DeliveryError):
        return undelivered(error)
    if not isinstance(error, BaseExceptionGroup):
        return None
    refusals = [refusal_in(each) for each in error.exceptions]
    return None if None in refusals else refusals[0]
