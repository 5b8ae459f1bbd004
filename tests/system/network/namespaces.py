"""Network namespaces made for a test, and sockets and taps inside them that the test's own process holds.

A socket stays in the namespace it was made in, so a thread enters the namespace, makes it and ends; nothing else of the
process is moved.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TAP, _NO_PACKET_INFORMATION = 0x400454CA, 0x0002, 0x1000
_RECEIVE_BUFFER_FORCED, _BUFFER_BYTES = 33, 8 * 1024 * 1024
_ETHERTYPE_ALL = 3
_SETTINGS = Path("/proc/sys/net")


class Namespace:
    """One network namespace, by its name in iproute2's folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        subprocess.run(["ip", "netns", "add", name], check=True)

    def delete(self) -> None:
        subprocess.run(["ip", "netns", "del", self.name], check=True)

    def ip(self, *commands: str) -> None:
        """Changes by iproute2, in one batch: each a command without its leading `ip`."""
        subprocess.run(["ip", "-n", self.name, "-batch", "-"], input="\n".join(commands), text=True, check=True)

    def output(self, *command: str) -> str:
        """What a program says when it is run inside."""
        return subprocess.run(self.inside(*command), check=True, capture_output=True, text=True).stdout

    def inside(self, *command: str) -> list[str]:
        """The command that runs `command` in the namespace, with /sys to match."""
        return ["ip", "netns", "exec", self.name, *command]

    def set(self, settings: dict[str, str]) -> None:
        """Write kernel settings: paths below /proc/sys/net."""
        self._enter(lambda: [(_SETTINGS / path).write_text(value) for path, value in settings.items()])

    def open_socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A non-blocking socket that lives in the namespace."""
        made = self._enter(lambda: socket.socket(family, kind, protocol))
        made.setblocking(False)
        return made

    def capture(self, device: str) -> socket.socket:
        """Every frame that passes a device, with room enough that none is lost."""
        made = self.open_socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE_ALL))
        made.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCED, _BUFFER_BYTES)
        made.bind((device, _ETHERTYPE_ALL))
        return made

    def tap(self, device: str) -> int:
        """The descriptor of a tap, which is made when there is none of that name."""
        return self._enter(lambda: open_tap(device))

    def resolved(self, address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """An address as a socket takes it; a zone (`%eth0`) is a device of the namespace."""
        if ":" not in address:
            return (address, port)
        plain, _, device = address.partition("%")
        return (plain, port, 0, self._enter(lambda: socket.if_nametoindex(device)) if device else 0)

    def received_bytes(self, device: str) -> int:
        """What the kernel counted that came to a device."""
        listed = self._enter(Path("/proc/thread-self/net/dev").read_text).splitlines()
        counted = {name.strip(): figures.split() for name, _, figures in (line.partition(":") for line in listed)}
        return int(counted[device][0])

    def _enter(self, make: Callable[[], Made]) -> Made:
        made: list[Made] = []
        failures: list[BaseException] = []

        def inside() -> None:
            try:
                with open(f"/run/netns/{self.name}", "rb") as place:
                    if _LIBC.setns(place.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {self.name}")
                made.append(make())
            except BaseException as error:  # noqa: BLE001 - it is raised to the caller, in the caller's thread
                failures.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return made[0]


def open_tap(device: str) -> int:
    """The descriptor of a tap of the namespace that the calling thread is in: whole frames, no headers before them."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TAP | _NO_PACKET_INFORMATION))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
