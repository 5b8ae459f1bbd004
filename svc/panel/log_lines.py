"""Request and answer of reading a log, the same for every log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio
from pydantic import Field

from svc.registry.operation import Model
from svc.registry.shapes import LINE, Shape
from svc_common.errors import wrong_field
from svc_webhost.log_files import CURSOR_PATTERN, BadCursorError, LogPart, read_log

Containing = Annotated[str, Field(min_length=1, max_length=200, description="Only lines that contain this text."), LINE]
MostLines = Annotated[int, Field(ge=1, le=1000, description="Lines at most.")]
LogCursor = Annotated[str, Field(max_length=50), Shape(CURSOR_PATTERN, "a cursor of an earlier answer")]


class LogLines(Model):
    """Send `cursor` as `after` of the next request. `more`: further lines can be read at once. `gap`: lines after the
    given cursor are lost, since logs are kept for a limited time."""

    lines: list[str]
    cursor: str | None
    more: bool
    gap: bool


async def log_part(log: Path, *, after: str | None, text: str | None, most: int) -> LogPart:
    """As `read_log`, but an invalid cursor raises `invalid`, since it is the caller's mistake."""
    try:
        return await trio.to_thread.run_sync(lambda: read_log(log, after=after, text=text, most=most))
    except BadCursorError as error:
        raise wrong_field("after", str(error)) from None
