"""Forks helpers. It has loaded everything that a helper needs, so one is ready some milliseconds after a request.

Started by the core, as `python -I -S confined/__main__.py`, with a socket as its standard input. A message there is a
JSON object (`uid`, `gid`, `without_landlock`) with two descriptors: the site's root folder and the helper's own socket.
The end of the socket ends this process; helpers end with theirs.
"""

from __future__ import annotations

import codecs
import gc
import json
import os
import signal
import socket
import sys
from typing import Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.confined.confine import Identity
from svc_webhost.confined.serve import serve
from svc_webhost.confined.zip_names import CODECS

_MESSAGE: Final = 4096
_NEEDED_LATER: Final = ("ascii", "latin-1", *CODECS)
"""Encodings are Python modules, which a helper can no longer load after it is confined."""


def main() -> None:
    for name in _NEEDED_LATER:
        codecs.lookup(name)
    # Objects that are loaded now stay: no helper's garbage collection visits them, so their memory pages stay shared.
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Helpers that end become no zombies.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with socket.socket(fileno=0) as orders:
        while True:
            message, descriptors, _, _ = socket.recv_fds(orders, _MESSAGE, 2)
            if not message:
                return
            _fork(json.loads(message), descriptors)


def _fork(order: dict[str, int], descriptors: list[int]) -> None:
    root, link = descriptors
    if os.fork() == 0:
        try:
            os.close(0)
            with socket.socket(fileno=link) as served:
                serve(
                    root, served, Identity(order["uid"], order["gid"]), without_landlock=bool(order["without_landlock"])
                )
        finally:
            os._exit(0)
    os.close(root)
    os.close(link)


if __name__ == "__main__":
    main()
