"""Structured logs: one JSON object a line, with secrets and tickets removed.

Invariants:
- every log line, through structlog or the standard library, passes the same redaction, tracebacks included;
- a log that cannot be written (its disk is full) fails nothing: lines are lost, counted, and the count is logged.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO, cast

import structlog
from pydantic_core import to_json

from svc_actors.tracing import ORIGIN

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.logs")

REDACTED = "[redacted]"
_SECRET_KEYS = re.compile(r"pass(word|wd)|secret|token$|ticket|cookie|authorization|sealed|csr$", re.IGNORECASE)
_SECRET_TEXTS = re.compile(
    r"((?:svc(?:vm|node|setup)|whsec)_[A-Za-z0-9_-]{4})[A-Za-z0-9_-]{12,}"
    # A panel's token has 43 characters after its prefix. Our own names with the same prefix are shorter, and must not
    # be hidden.
    r"|(svc_[A-Za-z0-9_-]{4})[A-Za-z0-9_-]{36,}"
    r"|((?:console/ws|sso)/)[^\s\"'?]+"
)


def configure(*, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error unless given)."""
    output = _Lossy(stream or sys.stderr)
    structlog.configure(
        processors=[render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=True,
    )
    handler: logging.Handler = logging.StreamHandler(cast(TextIO, output))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    for noisy in ("httpx", "httpcore", "hpack", "wsproto"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Lossy:
    """The stream that logs are written to. A line that cannot be written is dropped: if a log call raised an error, it
    would end the loop that was logging another error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0
        # A separate lock: structlog's loggers hold theirs during the call, so it would block the line about lost lines.
        self._turn = threading.RLock()

    def msg(self, line: str) -> None:
        self.write(f"{line}\n")

    debug = info = warning = error = critical = exception = msg

    def write(self, text: str) -> None:
        with self._turn:
            lost, self._lost = self._lost, 0
            try:
                # A part of the failed line may have been written, so the next one starts on a new line.
                self._stream.write(f"\n{text}" if lost else text)
                self._stream.flush()
            except OSError:
                self._lost = lost + 1
            else:
                if lost:
                    log.warning("log.lines_lost", lines=lost)

    def flush(self) -> None:
        """Does nothing: every line is flushed as it is written."""


def render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """The line of an event: redacted, without None values, and with the request's id. A single processor instead of a
    chain, since it runs for every request."""
    if event.get("exc_info"):
        event = structlog.processors.format_exc_info(logger, method, event)
    line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "level": method, **_redacted(event)}
    if (origin := ORIGIN.get()) is not None:
        if origin.request_id is not None:
            line.setdefault("request_id", origin.request_id)
        if origin.span is not None:
            line.setdefault("trace_id", origin.span.trace_id)
    return to_json(line, fallback=str).decode()


def without_secrets(text: str) -> str:
    """The text without anything that looks like a token, a ticket or a link that signs in."""
    return _SECRET_TEXTS.sub(_kept, text) if "svc" in text or "whsec" in text or "/" in text else text


def _redacted(event: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in event.items():
        if value is None:
            continue
        if _is_secret(key):
            kept[key] = REDACTED
        elif isinstance(value, str):
            kept[key] = without_secrets(value)
        elif isinstance(value, dict):
            kept[key] = _redacted(value)
        else:
            kept[key] = value
    return kept


@lru_cache(maxsize=1024)
def _is_secret(key: str) -> bool:
    return _SECRET_KEYS.search(key) is not None


def _kept(match: re.Match[str]) -> str:
    return f"{match[match.lastindex or 0]}{REDACTED}"
