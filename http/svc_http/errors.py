"""Errors as HTTP answers: all of them in one envelope, `{"error": {...}}`, with the status codes of the service's
table.

Invariants: the status follows from the code (specification, section Errors), with one exception that HTTP itself
requires: an unknown method on a known path is `invalid` with 405 and the Allow header. The text of an unexpected
exception is logged and never sent.
"""

from __future__ import annotations

import structlog
from pydantic_core import to_json

from svc.registry.realm import Failures
from svc_actors.tracing import request_id
from svc_actors.undelivered import refusal_in
from svc_common.errors import ErrorCode, ServiceError, invalid, not_found
from svc_http.asgi import Header
from svc_http.exchange import JSON_TYPE, Reply

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


def failure(error: ServiceError, failures: Failures) -> Reply:
    """Status, body and headers. The request's id is always among the details."""
    headers: list[Header] = [(b"content-type", JSON_TYPE)]
    if error.details and "retry_after" in error.details:
        headers.append((b"retry-after", str(error.details["retry_after"]).encode()))
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers.append((b"www-authenticate", b"Bearer"))
    members = failures.members(error, request_id())
    return failures.status(error), to_json({"error": members}, fallback=str), headers


def no_such_path(failures: Failures) -> Reply:
    error = not_found("There is nothing at this path.", hint="GET /api/v1/openapi.json lists every path.")
    return failure(error, failures)


def wrong_method(allowed: str, failures: Failures) -> Reply:
    _, body, headers = failure(invalid(f"This path answers to {allowed} only."), failures)
    return 405, body, [*headers, (b"allow", allowed.encode())]


def as_service_error(error: Exception) -> ServiceError:
    """Convert what a handler raised, also from inside nested nurseries, to the error that the caller gets. An
    unexpected exception is logged with its traceback."""
    if (refusal := refusal_in(error)) is not None:
        return refusal
    log.error("request.crashed", exc_info=error)
    return ServiceError(
        ErrorCode.INTERNAL,
        "The service failed internally; its log has the cause.",
        hint="Tell the operator the request id.",
    )
