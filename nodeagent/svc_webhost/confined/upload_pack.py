"""Connects git to a repository on another host, by SSH: `python -I -S confined/upload_pack.py DESCRIPTOR`

git runs as the account of a site, whose programs can read whatever that account has; they must not get the key of the
repository. So git talks to a socket, and at its other end, the descriptor, this process makes OpenSSH run
git-upload-pack on the host. The order is a JSON object on standard input, so that the key is in no process list and on
no disk: the fields of `other_host`, and `path` of the repository there. The last line of output is the error.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from typing import Any, Final

if __name__ == "__main__":
    # Without site-packages (-S) and the current folder (-I), only modules of this package can be found.
    sys.path.insert(0, os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2)))

from svc_webhost.confined import other_host
from svc_webhost.confined.other_host import FetchError

_SAID: Final = f"{other_host.HOME}/said"
_MOST_SAID: Final = 1 << 16


def main(arguments: list[str]) -> int:
    order = json.load(sys.stdin)
    with socket.socket(fileno=int(arguments[0])) as git:
        return other_host.run_as_account(order, lambda: relay_git(git, order))


def relay_git(git: socket.socket, order: dict[str, Any]) -> None:
    """Run until git or the other host has hung up. Raises FetchError."""
    command = shlex.join(["git-upload-pack", order["path"]])
    # git's protocol version 2 allows requests for any commit. Hosts that ignore the variable use the first version,
    # which git understands as well.
    with open(_SAID, "wb") as errors:
        status = subprocess.run(
            [*other_host.ssh(order), "-o", "SendEnv=GIT_PROTOCOL", command],
            stdin=git.fileno(),
            stdout=git.fileno(),
            stderr=errors,
            env={**other_host.environment(), "GIT_PROTOCOL": "version=2"},
            check=False,
        ).returncode
    with open(_SAID, "rb") as file:
        said = [line for line in file.read(_MOST_SAID).decode(errors="replace").splitlines() if line.strip()]
    if status != 0:
        raise FetchError(other_host.why_failed(status, said, "The repository was not fetched"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
