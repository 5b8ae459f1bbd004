"""nginx as a program: its service, its configuration test, and its status."""

from __future__ import annotations

import grp
import pwd
import re
import resource
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import ListeningPort, ListeningSocket, Service, ServiceName
from svc_webhost.nginx.previews import preview_socket
from svc_webhost.nginx.render import GENERATION, Ports, status_socket

NGINX: Final = ServiceName("nginx")
PROGRAM: Final = "/usr/sbin/nginx"
OPEN_FILES: Final = 65_536
"""Enough for two logs per site, and for the connections."""
UMASK: Final = 0o027
"""Without this mask nginx creates logs that everybody can read, also during a configuration test."""
TEST_SECONDS: Final = 30.0
STATUS_SECONDS: Final = 2.0

_HELD: Final = "NGINX"
_FORM: Final = "{descriptor};"
_CONFLICT: Final = re.compile(r'conflicting server name "([^"]+)"')
_PREFIX: Final = re.compile(r"^(nginx: )?(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d )?\[emerg\] (\d+#\d+: )?")
_PLACE: Final = re.compile(r" in /\S+/s\d+\.conf:\d+$")


def command(*arguments: str) -> tuple[str, ...]:
    """The command of nginx, with a limit of open files that is as high as this process's limit allows: the usual limit
    is 1,024, and the master opens all logs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    return ("/usr/bin/prlimit", f"--nofile={files}:{files}", "--", PROGRAM, *arguments)


def service(folders: HostFolders, main: Path, ports: Ports, worker_user: str) -> Service:
    """The launcher holds its sockets, and nginx takes over those that its variable NGINX names. The status socket: one
    that nginx binds itself would stay behind after a kill, and the next nginx could not bind it. The ports: so that
    visitors wait while nginx is replaced or restarted, instead of being refused. The launcher makes these sockets
    non-blocking, since nginx does not: if one connection woke two workers, one would accept it, and the other would
    hang with all its visitors until the next connection.

    Workers connect to the socket of previews, at which they are believed whose request they pass on: so no other
    account may. The group is that of the workers, and no site's account is in it."""
    group = grp.getgrgid(pwd.getpwnam(worker_user).pw_gid).gr_name
    sockets = (status_socket(folders), preview_socket(folders))
    return Service(
        name=NGINX,
        command=command("-p", f"{folders.nginx}/", "-c", str(main)),
        sockets=tuple(ListeningSocket(path, 0o660, "root", group, _HELD, _FORM) for path in sockets),
        ports=tuple(ListeningPort(address, port, _HELD, _FORM) for address, port in ports.listened),
        nonblocking=True,
        log=folders.nginx_output,
        # At SIGQUIT nginx finishes open requests before it ends.
        stop_signal=signal.SIGQUIT,
        umask=UMASK,
    )


@dataclass(frozen=True)
class ConfigurationTest:
    """`refused`: why nginx refuses it. `conflicts`: names that two sites have, of which nginx serves one."""

    refused: str | None
    conflicts: frozenset[str] = frozenset()


async def test(folders: HostFolders, main: Path) -> ConfigurationTest:
    """Run `nginx -t`. It opens log files and certificates as a start does, and binds no socket that is in use."""
    tried = command("-t", "-e", "stderr", "-p", f"{folders.nginx}/", "-c", str(main))
    with trio.move_on_after(TEST_SECONDS) as late:
        run = await trio.run_process(tried, check=False, stdout=subprocess.DEVNULL, capture_stderr=True, umask=UMASK)
    if late.cancelled_caught:
        return ConfigurationTest(f"nginx did not finish the test of its configuration within {TEST_SECONDS:g} seconds")
    said = run.stderr.decode(errors="replace")
    if run.returncode == 0:
        return ConfigurationTest(None, frozenset(_CONFLICT.findall(said)))
    return ConfigurationTest(words(said, folders) or said.strip() or f"nginx ended with status {run.returncode}")


def words(said: str, folders: HostFolders) -> str | None:
    """nginx's reason, without the time and without the panel's paths."""
    lines = [line for line in said.splitlines() if "[emerg]" in line]
    plain = [_PLACE.sub("", _PREFIX.sub("", line)).replace(f"{folders.data}/", "") for line in lines]
    return "; ".join(plain) or None


async def served_generation(folders: HostFolders) -> int | None:
    """The generation that answers; None if none does."""
    with trio.move_on_after(STATUS_SECONDS):
        try:
            async with await trio.open_unix_socket(str(status_socket(folders))) as stream:
                await stream.send_all(f"GET {GENERATION} HTTP/1.0\r\n\r\n".encode())
                answer = b"".join([part async for part in stream])
        except (OSError, trio.BrokenResourceError):
            return None
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(body) if b" 200 " in head and body.isdigit() else None
    return None
