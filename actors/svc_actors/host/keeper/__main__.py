"""The program: `python -I -S svc_actors/host/keeper/__main__.py DATA`. It stays in the foreground."""

from __future__ import annotations

import os
import resource
import signal
import sys

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only what lies beside this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3)))

from svc_actors.host.keeper.definition import RefusedError
from svc_actors.host.keeper.server import AnotherKeeperError, Keeper

ANOTHER = 3
"""The exit status where another keeper holds the folder, which is no failure to whoever needs one."""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or os.geteuid() != 0:
        print("usage (as root): keeper DATA-FOLDER", file=sys.stderr)
        return 2
    # What the starter left open would be every program's as well.
    most, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.closerange(3, most)
    # Two descriptors and more for each service.
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))
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
