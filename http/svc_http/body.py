"""The body of a request: read whole up to a limit, or chunk by chunk with back-pressure for an upload.

Invariant: what is held in memory is bounded by the channel below, whoever is slow. What nobody read is read and
dropped before the answer goes out, up to a bound: a connection closed over unread bytes would lose the answer as
well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from svc_actors.errors import invalid

MAX_BODY = 1_000_000
"""Bytes of a body that is read whole."""
BODY_DEADLINE = 30.0
CHUNK_DEADLINE = 60.0
_HELD_CHUNKS = 8
_DRAINED_BYTES = 16 * 1024 * 1024
_DRAIN_DEADLINE = 5.0


class IncomingBody:
    def __init__(self) -> None:
        self._put, self._chunks = trio.open_memory_channel[bytes](_HELD_CHUNKS)

    async def feed(self, chunk: bytes, *, last: bool) -> None:
        if chunk:
            await self._put.send(chunk)
        if last:
            self._put.close()

    async def read(self) -> bytes:
        """All of it. Raises `invalid` past `MAX_BODY` bytes or `BODY_DEADLINE` seconds."""
        whole = bytearray()
        with trio.move_on_after(BODY_DEADLINE) as deadline:
            async for chunk in self._chunks:
                whole += chunk
                if len(whole) > MAX_BODY:
                    raise invalid(f"the body of a request is at most {MAX_BODY} bytes")
        if deadline.cancelled_caught:
            raise invalid(f"the body of the request did not arrive within {BODY_DEADLINE:g} seconds")
        return bytes(whole)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Chunk by chunk. Raises `invalid` when none comes for `CHUNK_DEADLINE` seconds."""
        while True:
            chunk: bytes | None = None
            with trio.move_on_after(CHUNK_DEADLINE) as deadline:
                try:
                    chunk = await self._chunks.receive()
                except trio.EndOfChannel:
                    return
            if deadline.cancelled_caught or chunk is None:
                raise invalid(f"nothing of the upload arrived for {CHUNK_DEADLINE:g} seconds")
            yield chunk

    async def drain(self) -> None:
        dropped = 0
        with trio.move_on_after(_DRAIN_DEADLINE):
            async for chunk in self._chunks:
                dropped += len(chunk)
                if dropped > _DRAINED_BYTES:
                    return
