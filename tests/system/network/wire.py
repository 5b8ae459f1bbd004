"""The wires between guests' NICs and the host's taps, in a process of their own: frames are copied in order, unread.

    ip netns exec HOST python -m tests.system.network.wire CONTROL GUEST...

The arguments are descriptors: a socket for orders, and the tap at each guest's end, which is the guest's whole network
NIC. A guest is attached to a tap of the host as QEMU does it when a guest starts. An order is answered by the bytes
that were copied for its guest so far, when it has been carried out.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel

from tests.system.network.namespaces import open_tap

_LARGEST_FRAME = 65536
# More than a tap's queue holds (1,000): a turn takes all that waits at an end.
_FRAMES_A_TURN = 1024


class Order(BaseModel):
    """`attach`: a tap of the host. `frame`: is written at the host's end as if the guest had sent it. With neither,
    only the answer is wanted. `guest` is its place among the arguments."""

    guest: int
    attach: str | None = None
    frame: str | None = None


class Copied(BaseModel):
    """Bytes of whole frames that were copied for a guest; frames of orders are left out. `attached`: to a tap that has
    not gone."""

    attached: bool = False
    to_guest: int = 0
    from_guest: int = 0


class Wires:
    """The test's end: orders are given in turn, and have been carried out when the method returns."""

    def __init__(self, control: socket.socket) -> None:
        self._orders = control.makefile("rw")

    def attach(self, guest: int, device: str) -> None:
        self._give(Order(guest=guest, attach=device))

    def inject(self, guest: int, frame: bytes) -> None:
        """A frame shorter than Ethernet's shortest is filled up."""
        self._give(Order(guest=guest, frame=frame.ljust(60, b"\0").hex()))

    def copied(self, guest: int) -> Copied:
        return self._give(Order(guest=guest))

    def _give(self, order: Order) -> Copied:
        print(order.model_dump_json(), file=self._orders, flush=True)
        return Copied.model_validate_json(self._orders.readline())


@dataclass
class Wire:
    """Between a guest's NIC and a tap of the host; `host` is None while the guest is attached to none."""

    guest: int
    copied: Copied
    host: int | None = None

    def attach(self, device: str, selector: selectors.BaseSelector) -> None:
        self.detach(selector)
        self.host = open_tap(device)
        self.copied.attached = True
        selector.register(self.host, selectors.EVENT_READ, self)
        selector.register(self.guest, selectors.EVENT_READ, self)

    def detach(self, selector: selectors.BaseSelector) -> None:
        if self.host is not None:
            selector.unregister(self.host)
            selector.unregister(self.guest)
            os.close(self.host)
            self.host = None
            self.copied.attached = False

    def write_to_host(self, frame: bytes) -> None:
        """A NIC that is down takes nothing, as a cable that is pulled."""
        if self.host is not None:
            with suppress(OSError):
                os.write(self.host, frame)

    def copy(self, source: int) -> bool:
        """Copy what waits at one end; False when the host's tap has gone."""
        for _ in range(_FRAMES_A_TURN):
            try:
                frame = os.read(source, _LARGEST_FRAME)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if source == self.guest:
                self.copied.from_guest += len(frame)
                self.write_to_host(frame)
            else:
                self.copied.to_guest += len(frame)
                os.write(self.guest, frame)
        return True


def main(control: int, *guests: int) -> None:
    orders = socket.socket(fileno=control).makefile("rw")
    wires = [Wire(guest, Copied()) for guest in guests]
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == control:
                    line = orders.readline()
                    if not line:
                        return
                    answer = _carry_out(Order.model_validate_json(line), wires, selector)
                    print(answer.model_dump_json(), file=orders, flush=True)
                elif key.fd in selector.get_map() and not key.data.copy(key.fd):
                    key.data.detach(selector)


def _carry_out(order: Order, wires: list[Wire], selector: selectors.BaseSelector) -> Copied:
    wire = wires[order.guest]
    if order.attach is not None:
        wire.attach(order.attach, selector)
    if order.frame is not None:
        wire.write_to_host(bytes.fromhex(order.frame))
    # What the host has counted already and waits at its end has passed, whatever else this process had to do.
    if wire.host is not None:
        wire.copy(wire.host)
        wire.copy(wire.guest)
    return wire.copied


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
