"""How a command ends: one exit code for each error code of the API, and a few of the command line's own.

The numbers are stable: scripts branch on them (docs/cli.md).
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import IntEnum
from typing import IO, Any

import asyncclick as click

from svc.cli.terminal import say
from svc_common.errors import ErrorCode


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    INVALID = 2
    UNAUTHENTICATED = 3
    FORBIDDEN = 4
    NOT_FOUND = 5
    CONFLICT = 6
    NOT_READY = 7
    CAPACITY = 8
    RATE_LIMITED = 9
    UNAVAILABLE = 10
    INTERNAL = 11
    TASK_FAILED = 20
    WAIT_TIMED_OUT = 21
    INTERRUPTED = 128 + signal.SIGINT
    BROKEN_PIPE = 128 + signal.SIGPIPE


EXIT_BY_CODE = {code: Exit[code.name] for code in ErrorCode}


class Failure(click.ClickException):
    """An error for the user at the terminal: the message, and what to do about it. Written to stderr.

    `fields` are the problems with single parameters, by the parameters' names in the API; `request_id` identifies the
    refused request in the service's logs."""

    def __init__(
        self,
        exit_code: Exit,
        message: str,
        hint: str | None = None,
        *,
        fields: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = int(exit_code)  # type: ignore[misc] # click reads it from the instance
        self.hint = hint
        self.fields = dict(fields or {})
        self.request_id = request_id

    def show(self, file: IO[Any] | None = None) -> None:
        say(f"svc: {self.message}")
        if self.hint:
            say(f"     {self.hint}")
        if self.request_id:
            say(f"     request {self.request_id}")


def first_cause(error: BaseException) -> BaseException:
    """The error to show if a nursery raised a group: the first `Failure` in it, or else the first error."""
    while isinstance(error, BaseExceptionGroup):
        told = [inner for inner in error.exceptions if isinstance(first_cause(inner), Failure)]
        error = told[0] if told else error.exceptions[0]
    return error
