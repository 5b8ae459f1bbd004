#!/usr/bin/python3 -IS
"""The shell of logins as sshd sees it: it hands what it was given to the service of the login, and ends as that says.

    enter                a terminal, or what stands for one
    enter -c COMMAND     a command, or the SFTP server

Run by sshd as the account of the site, in a folder that holds Debian's programs and `/sockets`, one for each login. It
has no rights that the account has not, and shows it nothing: the service asks the kernel who connects.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

TOLD = ("TERM", "LANG", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY")
"""Of the environment that sshd makes, and what begins with LC_."""
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
LENGTH = 4


def main(arguments: list[str]) -> int:
    request = {
        "command": arguments[1] if arguments[:1] == ["-c"] else None,
        "environment": {name: value for name, value in os.environ.items() if name in TOLD or name.startswith("LC_")},
    }
    written = json.dumps(request).encode()
    service = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        service.connect(f"/sockets/{os.environ['USER']}.sock")
        # The descriptors come with the first of these bytes.
        socket.send_fds(service, [len(written).to_bytes(LENGTH, "big")], [0, 1, 2])
        service.sendall(written)
        for number in PASSED_ON:
            signal.signal(number, lambda given, _: service.send(bytes([given])))
        # They are the program's alone from here on: sshd is told when it has closed them.
        for descriptor in (0, 1):
            os.close(descriptor)
        said = b""
        while chunk := service.recv(4096):
            said += chunk
        answer = json.loads(said)
    except (OSError, ValueError):
        print("The shell of this login does not run; it is started again within half a minute.", file=sys.stderr)
        return 255
    if "signal" in answer:
        _end_by(answer["signal"])
    if "error" in answer:
        print(answer["error"], file=sys.stderr)
    return int(answer["status"])


def _end_by(number: int) -> None:
    """So that sshd tells its client which signal it was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
