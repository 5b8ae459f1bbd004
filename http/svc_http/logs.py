"""Structured logs: one JSON object a line, secrets and tickets taken out on the way.

Invariant: whatever logs, through structlog or the standard library, passes the same redaction, tracebacks included.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any, TextIO

import structlog
from pydantic_core import to_json

REDACTED = "[redacted]"
_SECRET_KEYS = re.compile(r"pass(word|wd)|secret|token$|ticket|cookie|authorization|sealed|csr$", re.IGNORECASE)
_SECRET_TEXTS = re.compile(r"(svc(?:vm|node|setup)_[A-Za-z0-9_-]{4})[A-Za-z0-9_-]{12,}|((?:console/ws|sso)/)[^\s\"'?]+")


def configure(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error unless given)."""
    output = stream or sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        _without_empty,
        redact,
        structlog.processors.JSONRenderer(_json),
    ]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(output),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    for noisy in ("httpx", "httpcore", "hpack", "wsproto"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def redact(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if _is_secret(key):
            event[key] = REDACTED
        elif isinstance(value, str):
            if "svc" in value or "/" in value:
                event[key] = _SECRET_TEXTS.sub(_kept, value)
        elif isinstance(value, dict):
            event[key] = redact(logger, method, dict(value))
    return event


@lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    return _SECRET_KEYS.search(key) is not None


def _json(event: object, **_: object) -> str:
    return to_json(event, fallback=str).decode()


def _kept(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}{REDACTED}"


def _without_empty(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: value for key, value in event.items() if value is not None}
