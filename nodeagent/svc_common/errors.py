"""The errors that a caller can get: each has a code from the specification's table.

A `ServiceError` is an answer, not a crash: it travels from wherever it is raised, through an actor's reply, to the edge
that renders it. Anything that is not a `ServiceError` becomes `internal` there, with its text kept out of the response.

Why: docs/decisions/0001-errors-from-a-closed-list.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol


class DomainError(Exception):
    """An error that is an answer: an actor that raises it lives on. Any other exception is a crash."""


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


def wrong_field(field: str, problem: str, *, hint: str | None = None) -> ServiceError:
    """`invalid` about one field of the request, in the form of malformed fields: `details.fields` names it."""
    return invalid(f"{field}: {problem}", hint=hint, details={"fields": [{"field": field, "problem": problem}]})


def require_name(name: str, confirm: str, *, of: str) -> None:
    """Check the confirmation of an irreversible operation: the caller repeats the resource's name. Raises `invalid` for
    another name; `of` says what it names."""
    if confirm != name:
        raise wrong_field("confirm", f"this is not the {of}'s name; nothing was done", hint="Repeat the name exactly.")
