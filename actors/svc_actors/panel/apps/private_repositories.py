"""Lets git, which runs as the account of a site, read a private repository without having the repository's key.

A site's programs can read whatever the site's account can. So git gets one end of a socket pair, and OpenSSH runs at
the other end as an account that owns nothing (`host.confined.upload_pack`).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import trio

from svc_actors.panel.apps.deploy_keys import DeployKey, open_private_key
from svc_actors.panel.jobs import JobRun, ProgramFailed
from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_common.errors import ServiceError, unavailable
from svc_webhost import confined
from svc_webhost.apps.repository import SshRepository
from svc_webhost.programs import memory_file

_FIRST_UID: Final = 2_000_000_000
"""First uid of the accounts under which OpenSSH runs, one per site; the uids of sites and imports are below it."""
_UPLOAD_PACK: Final = (
    *(sys.executable, "-I", "-S", "-X", "utf8"),
    str(Path(confined.__file__).with_name("upload_pack.py")),
)


def order_of(key: DeployKey, sealer: Sealer, site: SiteRow, repository: SshRepository, address: str) -> dict[str, Any]:
    """The order that `confined.upload_pack` reads."""
    uid = _FIRST_UID + site.number
    return {
        "uid": uid,
        "gid": uid,
        "address": address,
        "port": key.port,
        "user": repository.user,
        "host_key": key.host_key,
        "password": None,
        "private_key": open_private_key(key, sealer),
        "path": repository.path,
    }


async def repository_connection(
    run: JobRun, order: dict[str, Any], seconds: float, work: Callable[[int], Awaitable[None]]
) -> None:
    """Run `work` with a file descriptor that is connected to the repository. Raises what `work` raises; if `work`
    failed because the other host has hung up, raises `unavailable` with that host's message."""
    said: list[ServiceError] = []
    failed: ServiceError | None = None
    ours, theirs = socket.socketpair()

    async def speak() -> None:
        # `theirs` stays open until the other host's message is known, so that git keeps waiting.
        with theirs, memory_file(order) as path:
            command = (*_UPLOAD_PACK, str(theirs.fileno()))
            try:
                await run.program(command, seconds=seconds, stdin=path, descriptors=(theirs.fileno(),))
            except ServiceError as error:
                last = error.last if isinstance(error, ProgramFailed) else ""
                said.append(unavailable(last or error.message, hint="The running release was left as it is."))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(speak)
        with ours:
            try:
                await work(ours.fileno())
            except ServiceError as error:
                failed = said[0] if said else error
    if failed is not None:
        raise failed
