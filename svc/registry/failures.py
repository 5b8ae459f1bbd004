"""How a service reports errors: its codes, their HTTP statuses, and the members of the envelope.

An error is raised with one of the kernel's codes. If a service's specification lacks that code, the service answers
with the closest one it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from svc.registry.operation import Model
from svc_common.errors import ErrorCode, ServiceError


class ErrorBody(Model):
    """`hint` says what to do about it; `details` are facts for a program, `request_id` always among them."""

    code: ErrorCode
    message: str
    hint: str | None = None
    details: dict[str, Any] | None = None


class ErrorEnvelope(Model):
    """Every failure, whatever its status."""

    error: ErrorBody


@dataclass(frozen=True)
class Failures:
    """`statuses`: the HTTP status of each code that the service answers with. `spoken_as`: the code that replaces one
    that the service lacks. `envelope` describes the answer in OpenAPI."""

    statuses: Mapping[ErrorCode, int]
    envelope: type[Model]
    spoken_as: Mapping[ErrorCode, ErrorCode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for code in ErrorCode:
            if self.code(code) not in self.statuses:
                raise ValueError(f"the code {code.value} has no status")

    def code(self, code: ErrorCode) -> ErrorCode:
        return self.spoken_as.get(code, code)

    def status(self, error: ServiceError) -> int:
        return self.statuses[self.code(error.code)]

    def members(self, error: ServiceError, request_id: str | None) -> dict[str, object]:
        """The members of `error` in the envelope; `request_id` identifies the request in the logs."""
        members: dict[str, object] = {"code": self.code(error.code).value, "message": error.message}
        if error.hint is not None:
            members["hint"] = error.hint
        details = dict(error.details or {})
        if request_id is not None:
            details["request_id"] = request_id
        if details:
            members["details"] = details
        return members
