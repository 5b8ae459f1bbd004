"""The errors that a caller can get: each has a code from the specification's table.

A `ServiceError` is an answer, not a crash: it travels from wherever it is raised, through an actor's reply, to the edge
that renders it. Anything that is not a `ServiceError` becomes `internal` there, with its text kept out of the response.

Why: docs/decisions/0001-errors-from-a-closed-list.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

from svc_actors.runtime import DeliveryError, DomainError, Draining, MailboxFull


class ErrorCode(StrEnum):
    """The error codes of the API (specification, section Errors)."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    NOT_READY = "not_ready"
    CAPACITY = "capacity"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


class ServiceError(DomainError):
    """What happened (`message`), what to do about it (`hint`), and facts a program can use (`details`)."""

    def __init__(
        self, code: ErrorCode, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = dict(details) if details is not None else None

    def __repr__(self) -> str:
        return f"ServiceError({self.code.value}: {self.message})"


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


def _raiser(code: ErrorCode) -> _Factory:
    def make(message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None) -> ServiceError:
        return ServiceError(code, message, hint=hint, details=details)

    make.__name__ = code.value
    return make


class _Factory(Protocol):
    def __call__(
        self, message: str, *, hint: str | None = None, details: Mapping[str, object] | None = None
    ) -> ServiceError: ...


invalid = _raiser(ErrorCode.INVALID)
unauthenticated = _raiser(ErrorCode.UNAUTHENTICATED)
forbidden = _raiser(ErrorCode.FORBIDDEN)
not_found = _raiser(ErrorCode.NOT_FOUND)
conflict = _raiser(ErrorCode.CONFLICT)
not_ready = _raiser(ErrorCode.NOT_READY)
capacity = _raiser(ErrorCode.CAPACITY)
rate_limited = _raiser(ErrorCode.RATE_LIMITED)
unavailable = _raiser(ErrorCode.UNAVAILABLE)


_NOT_BEGUN: Final[Mapping[type[DeliveryError], str]] = {
    MailboxFull: "Too many changes of this wait already; nothing was done.",
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


def wrong_field(field: str, problem: str, *, hint: str | None = None) -> ServiceError:
    """`invalid` about one field of the request, in the form of malformed fields: `details.fields` names it."""
    return invalid(f"{field}: {problem}", hint=hint, details={"fields": [{"field": field, "problem": problem}]})


def require_name(name: str, confirm: str, *, of: str) -> None:
    """Check the confirmation of an irreversible operation: the caller repeats the resource's name. Raises `invalid` for
    another name; `of` says what it names."""
    if confirm != name:
        raise wrong_field("confirm", f"this is not the {of}'s name; nothing was done", hint="Repeat the name exactly.")
