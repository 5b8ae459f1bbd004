"""Streams that fill a rate: UDP faster than it, TCP as fast as it lets, and how fast they come out."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.system.network.matrix import Matrix, opener_of
from tests.system.network.packets import PATIENCE_SECONDS
from tests.system.network.places import Family, Place

MEGABIT = 1_000_000
DATAGRAM_BYTES = 1400
_PACE_SECONDS = 0.002


@asynccontextmanager
async def flood(matrix: Matrix, source: Place, target: Place, family: Family, mbps: float) -> AsyncIterator[None]:
    """UDP at a steady `mbps`, which nobody reads at the other end, on a flow that both have spoken on."""
    async with matrix.established(*opener_of(source, target), family) as control, trio.open_nursery() as nursery:
        nursery.start_soon(_pour, control.end(source), mbps)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def stream(matrix: Matrix, source: Place, target: Place, family: Family) -> AsyncIterator[None]:
    """One TCP connection, filled from one end and emptied at the other; cut at its end, with whatever waits in it."""
    opener, other = opener_of(source, target)
    async with matrix.connection(opener, other, family, 5001) as connection, trio.open_nursery() as nursery:
        ends = (connection.client, connection.server)
        nursery.start_soon(_fill, ends[opener is not source])
        nursery.start_soon(_empty, ends[opener is source])
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        yield
        nursery.cancel_scope.cancel()


async def measured_mbps(matrix: Matrix, place: Place, *, seconds: float, warm_up_bytes: int) -> float:
    """Megabits a second of whole frames that come to a place, over a time that begins after `warm_up_bytes`."""
    namespace, device = matrix.lab.namespace(place), place.device
    begin = namespace.received_bytes(device)
    with trio.fail_after(PATIENCE_SECONDS):
        while namespace.received_bytes(device) < begin + warm_up_bytes:
            await trio.sleep(_PACE_SECONDS)
    first, start = namespace.received_bytes(device), trio.current_time()
    await trio.sleep(seconds)
    last, end = namespace.received_bytes(device), trio.current_time()
    return (last - first) * 8 / MEGABIT / (end - start)


async def _pour(sender: trio.socket.SocketType, mbps: float) -> None:
    datagram, start, sent = bytes(DATAGRAM_BYTES), trio.current_time(), 0
    while True:
        due = (trio.current_time() - start) * mbps * MEGABIT / 8
        while sent < due:
            await sender.send(datagram)
            sent += DATAGRAM_BYTES
        await trio.sleep(_PACE_SECONDS)


async def _fill(stream: trio.SocketStream) -> None:
    chunk = bytes(65536)
    while True:
        await stream.send_all(chunk)


async def _empty(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass
