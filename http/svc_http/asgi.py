"""What the applications here share: bodies of requests, headers that restrict a browser, Hypercorn's lifespan messages.

The core and the web tier read bodies in the same way (the panel's specification, Limits; docs/limits.md).

Why: docs/decisions/0004-browsers-and-origins.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Final

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable

from svc_common.errors import invalid

MAX_BODY: Final = 1_000_000
"""Bytes of a body that is read completely."""
MAX_PUBLIC_BODY: Final = 16 * 1024
"""The same for callers without a credential. A sign-in takes some hundred bytes and a node's enrolment some thousand;
the limit is low because the body of a slow sender is held in memory."""
BODY_DEADLINE: Final = 30.0
"""Seconds in which the whole body must arrive."""

Header = tuple[bytes, bytes]

# Each header adds a percent to the time of a read, so headers that matter only to pages are not sent with data.
OF_ANSWERS: Final[tuple[Header, ...]] = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
OF_PAGES: Final[tuple[Header, ...]] = (
    *OF_ANSWERS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Only a day, because it applies to the host with all its ports, including those of other programs. Browsers accept
    # it only with a certificate that they trust (RFC 6797, 8.1).
    (b"strict-transport-security", b"max-age=86400"),
)
PAGE_POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
"""The Content-Security-Policy of our pages: they load only files that this server serves with them."""


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


async def read_whole(chunks: AsyncIterable[bytes], most: int = MAX_BODY) -> bytes:
    """All of a body. Raises `invalid` past `most` bytes or `BODY_DEADLINE` seconds."""
    whole = bytearray()
    with trio.move_on_after(BODY_DEADLINE) as deadline:
        async for chunk in chunks:
            whole += chunk
            if len(whole) > most:
                raise invalid(f"The body of this request is too large: at most {most} bytes are accepted.")
    if deadline.cancelled_caught:
        raise invalid(f"The body of the request did not arrive within {BODY_DEADLINE:g} seconds.")
    return bytes(whole)


async def lifespan(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Acknowledge Hypercorn's lifespan messages: the application has nothing to do when it starts or stops."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
