"""Hypercorn's lifespan messages for an application that has nothing to do at its start and end."""

from __future__ import annotations

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable


async def lifespan(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Answer them, until the end."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
