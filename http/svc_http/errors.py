"""Failures on the wire: one envelope for everything, `{"error": {"code", "message", "hint"?, "details"?}}`.

Invariants: the status follows from the code (specification, section Errors), with one exception that HTTP itself
asks for: an unknown method on a known path is `invalid` with 405 and the Allow header. The text of a defect never
leaves the process.
"""

from __future__ import annotations

import structlog
from pydantic_core import to_json
from quart import Response
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from svc.registry.openapi import STATUS_OF
from svc_actors.errors import ErrorCode, ServiceError, invalid, not_found
from svc_http.wire import JSON_TYPE

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


def failure_body(error: ServiceError) -> bytes:
    members: dict[str, object] = {"code": error.code.value, "message": error.message}
    if error.hint is not None:
        members["hint"] = error.hint
    if error.details is not None:
        members["details"] = error.details
    return to_json({"error": members}, fallback=str)


def failure(error: ServiceError, *, status: int | None = None) -> Response:
    response = Response(failure_body(error), status=status or STATUS_OF[error.code], content_type=JSON_TYPE)
    if error.code is ErrorCode.RATE_LIMITED and error.details and "retry_after" in error.details:
        response.headers["Retry-After"] = str(error.details["retry_after"])
    if error.code is ErrorCode.UNAUTHENTICATED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def refusal_of_http(error: HTTPException) -> Response:
    """What Quart refuses before an operation is reached."""
    if isinstance(error, NotFound):
        return failure(not_found("there is nothing at this path", hint="GET /api/v1/openapi.json lists every path"))
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        response = failure(invalid(f"this path answers to {allowed} only"), status=405)
        response.headers["Allow"] = allowed
        return response
    return failure(invalid(error.description or "the request is malformed"))


def defect(error: Exception, request_id: str) -> ServiceError:
    """Log a defect whole, and give what the caller is told of it."""
    log.error("defect", request_id=request_id, exc_info=error)
    return ServiceError(
        ErrorCode.INTERNAL,
        "something went wrong inside the service; it has been logged",
        hint="tell the operator the request id",
        details={"request_id": request_id},
    )


def as_service_error(error: Exception, request_id: str) -> ServiceError:
    """The error for the caller: what a handler raised, also from inside one or several nurseries."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, ExceptionGroup):
        refusals, others = error.split(ServiceError)
        if others is None and refusals is not None:
            first: BaseException = refusals
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            if isinstance(first, ServiceError):
                return first
    return defect(error, request_id)
