"""Structured logs of the agent: one JSON object a line on standard error, for journald or a file.

Invariant: a log that cannot be written (its disk is full) fails nothing; its lines are lost.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import TextIO

import structlog


def configure_logging(*, least: str = "info") -> None:
    """`least` is the lowest level that is written: debug, info, warning or error."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[least.upper()]),
        logger_factory=lambda *_: _LossyLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )


class _LossyLogger:
    """structlog's own logger would raise the stream's error, even inside a handler that has just caught an error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        with suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = msg
