"""Live migration of a guest from this host, or to it: libvirt does it, over streams that the controller joins.

libvirt's peer-to-peer migration is used: the source's libvirt speaks with the target's. The guest always arrives paused
and is resumed once the controller's record says that it is here (`finish`).

Invariants:
- until the target has received the guest completely, the guest exists on the source: libvirt ends it there only after
  that. If anything fails before, the guest is resumed on the source, by `settle` at the latest;
- the machine on the target has the mark of `arrivals` until the guest has arrived completely, so that the remains of a
  failure or a crash are removed; the machine's taps pass no packets until `finish` applies its network;
- the definition that the source sends can name only these files of the target: the machine's own, its image and the
  firmware.

Rejected: TCP between the hosts, which needs open ports of libvirt and QEMU and trust between all nodes; tunnelled
migration, which cannot copy disks by NBD; a guest that arrives running, because libvirt resumes the guest on the source
if the target's last message is lost, and the guest would run on both hosts.

Why: docs/decisions/0029-migration.md.
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
        """Carry one step out."""
        try:
            match operation:
                # The source handles send and settle, the target receive, look and finish; `live_work` has their order.
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
            # After a lost connection to libvirt, other operations are repeated here. Each stream of a move can be
            # opened only once, so the controller has to repeat the whole attempt.
            raise cut_short(lost.message) from lost
