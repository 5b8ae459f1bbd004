"""The wires between guests' cards and the host's taps, in a process of their own: frames are copied in order, unread.

    ip netns exec HOST python -m tests.system.network.wire CONTROL GUEST...

The arguments are descriptors: a socket for orders, and the tap at each guest's end, which is the guest's whole network
card. `Attach` joins a guest to a tap of the host, as QEMU does when it starts; `Inject` writes a frame at the host's
end as if the guest had sent it. An order is answered with an empty line when it has been carried out.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass

from tests.system.network.namespaces import open_tap

_LARGEST_FRAME = 65536
_FRAMES_A_TURN = 64


@dataclass(frozen=True)
class Attach:
    guest: int
    device: str


@dataclass(frozen=True)
class Inject:
    guest: int
    frame: str


class Wires:
    """The test's end: orders are given in turn, and have been carried out when the method returns."""

    def __init__(self, control: socket.socket) -> None:
        self._orders = control.makefile("rw")

    def attach(self, guest: int, device: str) -> None:
        self._give(Attach(guest, device))

    def inject(self, guest: int, frame: bytes) -> None:
        self._give(Inject(guest, frame.ljust(60, b"\0").hex()))

    def _give(self, order: Attach | Inject) -> None:
        print(json.dumps(asdict(order)), file=self._orders, flush=True)
        if self._orders.readline() != "\n":
            raise EOFError("the process that copies frames has ended")


def main(control: int, *guests: int) -> None:
    orders = socket.socket(fileno=control).makefile("rw")
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    joined: dict[int, int] = {}
    while True:
        for key, _ in selector.select():
            if key.fd == control:
                line = orders.readline()
                if not line:
                    return
                _carry_out(json.loads(line), guests, joined, selector)
                print(file=orders, flush=True)
            elif key.fd in selector.get_map() and not _copy(key.fd, key.data):
                guest = key.fd if key.fd in joined else key.data
                _unjoin(selector, guest, joined.pop(guest))


def _carry_out(
    order: dict[str, str | int], guests: tuple[int, ...], joined: dict[int, int], selector: selectors.BaseSelector
) -> None:
    guest = guests[int(order["guest"])]
    if "frame" in order:
        _write(joined[guest], bytes.fromhex(str(order["frame"])))
        return
    if guest in joined:
        _unjoin(selector, guest, joined.pop(guest))
    host = joined[guest] = open_tap(str(order["device"]))
    selector.register(host, selectors.EVENT_READ, guest)
    selector.register(guest, selectors.EVENT_READ, host)


def _copy(source: int, target: int) -> bool:
    """Copy what waits; False when the tap has gone."""
    for _ in range(_FRAMES_A_TURN):
        try:
            frame = os.read(source, _LARGEST_FRAME)
        except BlockingIOError:
            return True
        except OSError:
            return False
        _write(target, frame)
    return True


def _write(target: int, frame: bytes) -> None:
    """A card that is down takes nothing, as a cable that is pulled."""
    with suppress(OSError):
        os.write(target, frame)


def _unjoin(selector: selectors.BaseSelector, guest: int, host: int) -> None:
    selector.unregister(host)
    selector.unregister(guest)
    os.close(host)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
