"""Why a service cannot start, in a message for the person who starts it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from svc.cli.failures import Exit, Failure, first_cause
from svc_actors.store import (
    AnotherServiceError,
    DatabaseInUseError,
    DatabaseStartError,
    MigrationError,
    SteppedBackError,
)
from svc_actors.tracing import TracingSettingsError


@asynccontextmanager
async def one_line_failures() -> AsyncIterator[None]:
    """Report in one line, without a traceback, why the service cannot start or had to stop."""
    try:
        yield
    except Exception as error:
        cause = first_cause(error)
        if isinstance(cause, AnotherServiceError | DatabaseInUseError):
            raise Failure(Exit.CONFLICT, str(cause)) from error
        if isinstance(cause, TracingSettingsError):
            raise Failure(Exit.INVALID, str(cause)) from error
        if isinstance(cause, DatabaseStartError | MigrationError | SteppedBackError):
            raise Failure(Exit.FAILED, str(cause)) from error
        raise
