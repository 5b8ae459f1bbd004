"""The body of a request, read by either tier (hosting-panel-api.md, Limits; docs/limits.md)."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Final

import trio

from svc_common.errors import invalid

MAX_BODY: Final = 1_000_000
"""Bytes of a body that is read completely."""
MAX_PUBLIC_BODY: Final = 16 * 1024
"""The same for callers without a sign-in: a sign-in takes some hundred bytes, a node's enrolment some thousand, and a
slow sender's body is held in memory."""
BODY_DEADLINE: Final = 30.0
"""Seconds in which all of it must arrive."""


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


async def read_whole(chunks: AsyncIterable[bytes], most: int = MAX_BODY) -> bytes:
    """All of a body. Raises `invalid` past `most` bytes or `BODY_DEADLINE` seconds."""
    whole = bytearray()
    with trio.move_on_after(BODY_DEADLINE) as deadline:
        async for chunk in chunks:
            whole += chunk
            if len(whole) > most:
                raise invalid(f"The body of this request is at most {most} bytes.")
    if deadline.cancelled_caught:
        raise invalid(f"The body of the request did not arrive within {BODY_DEADLINE:g} seconds.")
    return bytes(whole)
