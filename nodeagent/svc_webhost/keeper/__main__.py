"""The program: `python -I -S svc_webhost/keeper/__main__.py DATA`. It stays in the foreground."""

from __future__ import annotations

import os
import resource
import signal
import sys

if __name__ == "__main__":
    # -S leaves out site-packages and -I the current folder, so only the standard library and the tree that contains
    # this package can be imported.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.keeper.definition import RefusedError
from svc_webhost.keeper.server import AnotherKeeperError, Keeper

ANOTHER = 3
"""The exit status if another keeper has the folder. For a launcher that needs a keeper, this is no failure."""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or os.geteuid() != 0:
        print("usage (as root): keeper DATA-FOLDER", file=sys.stderr)
        return 2
    # Closed, because every program would inherit a descriptor that the keeper's starter has left open.
    most, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, most)
    # The keeper needs a pidfd and the listening sockets of each service. The programs themselves get the limit of 1,024
    # again (children.py).
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
    # Otherwise Python would raise KeyboardInterrupt at any line. With the default action the signal ends the keeper as
    # SIGKILL does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        Keeper(os.path.abspath(arguments[0])).run()
    except AnotherKeeperError as error:
        print(f"keeper: {error}", file=sys.stderr)
        return ANOTHER
    except RefusedError as error:
        print(f"keeper: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
