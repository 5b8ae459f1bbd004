"""A running guest that moves from this host, or to it: libvirt moves it, over streams that the controller joins.

libvirt's peer-to-peer move is used: the source's libvirt speaks with the target's. The guest arrives paused, always,
and goes on here once the controller's record says that it is here (`finish`).

Invariants:
- until then the source has a guest that can go on: libvirt ends it there only once the target has it complete, and
  where anything fails it is let go on, at the latest by `settle`;
- what the target has bears the mark of `arrivals` until the guest has arrived complete, so whatever an end or a crash
  leaves is removed; its taps carry nothing until `finish` brings the machine's network;
- what comes names no file of this host but the machine's own and its image.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from svc_nodeagent.host import OpenStream, Report
from svc_nodeagent.hypervisor import arrivals
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.hypervisor.live_receiving import LiveReceiving, Steps
from svc_nodeagent.hypervisor.live_sending import LiveSending
from svc_nodeagent.hypervisor.live_streams import Sockets, SocketsOf, own_libvirt_socket
from svc_nodeagent.hypervisor.live_words import cut_short
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import (
    LiveOperation,
    OperationResult,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
)


class LiveMoves:
    """`steps` and `remove` as of `Moves`. `sockets` and `libvirt_socket`: where a move's sockets are, and libvirt's."""

    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        network: HostNetwork,
        definitions: Definitions,
        open_stream: OpenStream,
        steps: Steps,
        remove: arrivals.Remove,
        sockets: SocketsOf = Sockets,
        libvirt_socket: Callable[[], Path] = own_libvirt_socket,
    ) -> None:
        self._sending = LiveSending(
            guests=guests,
            folders=folders,
            naming=naming,
            images=images,
            definitions=definitions,
            open_stream=open_stream,
            sockets=sockets,
        )
        self._receiving = LiveReceiving(
            guests=guests,
            folders=folders,
            naming=naming,
            images=images,
            network=network,
            definitions=definitions,
            open_stream=open_stream,
            steps=steps,
            remove=remove,
            sockets=sockets,
            libvirt_socket=libvirt_socket,
        )

    async def perform(self, operation: LiveOperation, report: Report) -> OperationResult:
        """Not repeated where libvirt goes away meanwhile: the streams of a move are opened once."""
        try:
            match operation:
                case VmLiveSend():
                    return await self._sending.send(operation, report)
                case VmLiveReceive():
                    return await self._receiving.receive(operation, report)
                case VmLiveSettle():
                    return await self._sending.settle(operation.vm_id)
                case VmLiveLook():
                    return await self._receiving.look(operation.vm_id)
                case VmLiveFinish():
                    return await self._receiving.finish(operation)
        except ConnectionLost as lost:
            raise cut_short(lost.message) from lost
