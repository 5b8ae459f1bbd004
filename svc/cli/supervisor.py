"""What a service tells whoever supervises it: sd_notify(3), by systemd and what speaks as it does."""

from __future__ import annotations

import socket
from collections.abc import Mapping


def tell_supervisor(environ: Mapping[str, str], state: str) -> None:
    """Send `state`, such as `READY=1`, to the socket of NOTIFY_SOCKET; without one nobody asked to be told."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        # A leading @ is an abstract address, which begins with a zero byte (unix(7)).
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.send(state.encode())
