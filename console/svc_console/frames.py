"""Hypercorn's websocket, sending binary messages as they are: uncompressed, and copied once.

Two costs decide how fast a console is. Hypercorn accepts permessage-deflate whenever a browser offers it, and deflating
a screen costs more than sending it: this stream declines the offer. wsproto copies a payload three times to frame it; a
server's frame is a header of at most ten bytes before the unmasked payload (RFC 6455, section 5.2), joined here once.
Everything else (handshake, pings, closing, received messages) stays Hypercorn's own.
"""

from __future__ import annotations

import struct

import hypercorn.protocol.h2
import hypercorn.protocol.h11
from hypercorn.protocol.events import Data
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from hypercorn.typing import ASGISendEvent, WebsocketAcceptEvent
from wsproto.connection import ConnectionState

_FINAL_BINARY = 0x82


class PlainWSStream(WSStream):
    """A websocket that frames binary messages itself."""

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if (
            message is not None
            and message["type"] == "websocket.send"
            and message["bytes"]
            and self.state is ASGIWebsocketState.CONNECTED
            and not self.closed
            and self.connection.state is ConnectionState.OPEN
        ):
            data = message["bytes"]
            await self.send(Data(stream_id=self.stream_id, data=b"".join((_header(len(data)), data))))
        else:
            await super().app_send(message)

    async def _accept(self, message: WebsocketAcceptEvent) -> None:
        self.handshake.extensions = None
        await super()._accept(message)


def install() -> None:
    """Have Hypercorn use these for every connection of the process. Repeating it changes nothing."""
    hypercorn.protocol.h11.WSStream = PlainWSStream  # type: ignore[attr-defined]
    hypercorn.protocol.h2.WSStream = PlainWSStream  # type: ignore[attr-defined]


def _header(length: int) -> bytes:
    if length < 126:
        return struct.pack("!BB", _FINAL_BINARY, length)
    if length < 1 << 16:
        return struct.pack("!BBH", _FINAL_BINARY, 126, length)
    return struct.pack("!BBQ", _FINAL_BINARY, 127, length)
