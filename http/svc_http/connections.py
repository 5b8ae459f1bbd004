"""Hypercorn's connections, each one's misfortune kept to itself.

Two things that would end the whole listener end one connection at most:

- an error that nobody foresaw in a connection: it is logged, and that connection is closed;
- over HTTP/2, data that a client sent before it learned that the server had ended the stream (a websocket's answer to
  our close, the rest of a refused upload). That is ordinary (RFC 9113, section 5.1), and Hypercorn 0.18 takes it for a
  defect of its own. Here it counts for the connection's flow control and is let go.
"""

from __future__ import annotations

import h2.events
import hypercorn.protocol
import hypercorn.trio.run
import structlog
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc_http.connections")


class ContainedConnection(TCPServer):
    """One accepted connection. The base closes its stream however it ends."""

    async def run(self) -> None:
        try:
            await super().run()
        except Exception:
            log.exception("connection ended by a defect")


class PatientH2Protocol(H2Protocol):
    """HTTP/2 that survives data for a stream which has ended on this side."""

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
            else:
                await super()._handle_events([event])


def install() -> None:
    """Have Hypercorn use these for every connection of the process. Repeating it changes nothing."""
    hypercorn.trio.run.TCPServer = ContainedConnection  # type: ignore[attr-defined]
    hypercorn.protocol.H2Protocol = PatientH2Protocol  # type: ignore[attr-defined]
