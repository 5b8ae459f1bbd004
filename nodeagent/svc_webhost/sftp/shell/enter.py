#!/usr/bin/python3 -IS
"""The shell of logins for sshd: passes its terminal or pipes to the service of the login, and ends with the status or
signal that the service reports.

    enter                a terminal, or pipes instead
    enter -c COMMAND     a command, or the SFTP server

Run by sshd as the account of the site, in a folder that holds Debian's programs and `/sockets`, one for each login. It
has only the account's rights, and presents no credentials: the service asks the kernel who connects.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

TOLD = ("TERM", "LANG", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY")
"""Variables of sshd's environment that are passed on, in addition to those with the prefix LC_."""
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
        # The descriptors are sent together with the first of these bytes.
        socket.send_fds(service, [len(written).to_bytes(LENGTH, "big")], [0, 1, 2])
        service.sendall(written)
        for number in PASSED_ON:
            signal.signal(number, lambda given, _: service.send(bytes([given])))
        # From here on only the program has these descriptors, so sshd notices when the program closes them.
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
    """End by this signal, so that sshd can report the signal to its client."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
