"""Parses the Retry-After header."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After, which is a number of seconds or a date (RFC 9110, 10.2.3); None if it is neither.
    The names of `headers` are in lower case, as in httpx."""
    asked = headers.get("retry-after", "")
    if asked.isascii() and asked.isdigit():
        return float(asked)
    try:
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    except ValueError:
        return None
