"""The SSH client that git runs: `python -I -S git_relay.py DESCRIPTOR ...`

It relays git's output to a socket, and the socket's data to git. Everything else that git passes to an SSH client is
ignored: the other end of the socket decides on the host and the command (`confined.upload_pack`).
"""

from __future__ import annotations

import os
import select
import socket
import sys

_BLOCK = 1 << 16


def main(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as other:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(other, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                block = os.read(ready, _BLOCK)
                if ready == 0 and not block:
                    poll.unregister(0)
                    other.shutdown(socket.SHUT_WR)
                elif ready == 0:
                    other.sendall(block)
                elif not block:
                    return
                else:
                    _write(block)


def _write(block: bytes) -> None:
    while block:
        block = block[os.write(1, block) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
