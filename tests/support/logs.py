"""How tests write what the code under them logs."""

from __future__ import annotations

import structlog


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
