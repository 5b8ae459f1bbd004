"""How tests write what the code under them logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import structlog

from svc_http.logs import render


def plain_logs() -> None:
    """Lines with tracebacks as Python writes them. The coloured ones that structlog makes by itself, where it finds the
    library for them, take a fifth of a second each."""
    structlog.reset_defaults()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )


def keep_no_loggers() -> None:
    """Programs have their loggers keep what they were configured with at their first line. In a test that is the stream
    of that test, and whoever looks at the log in a later one would see nothing."""
    configure = structlog.configure

    def configure_anew(*arguments: Any, **options: Any) -> None:
        configure(*arguments, **options | {"cache_logger_on_first_use": False})

    structlog.configure = configure_anew


@contextmanager
def service_log(stream: StringIO) -> Iterator[None]:
    """The log as the service writes it."""
    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: structlog.PrintLogger(stream),
    )
    try:
        yield
    finally:
        plain_logs()


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
