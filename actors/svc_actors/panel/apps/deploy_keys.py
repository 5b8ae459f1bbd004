"""Deploy keys: they open private git repositories for deployments of one application, and nothing else.

The panel generates the key pair; the owner registers the public half with the repository's host, as a read-only key.
The private half is sealed in the database, for its site. Invariant: no account that runs a site's programs ever has it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.panel.jobs import JobRun, ProgramFailed
from svc_actors.panel.sites.records import SiteRow
from svc_actors.remote_targets import new_key_pair
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import ServiceError, conflict, unavailable
from svc_webhost import confined
from svc_webhost.apps.repository import SshRepository
from svc_webhost.programs import memory_file

MOST: Final = 10
"""The most deploy keys of a site."""
_COLUMNS: Final = "id, site_id, host, port, host_key, public_key, sealed_private_key, made_at"

_FIRST_UID: Final = 2_000_000_000
"""First uid of the accounts under which OpenSSH runs, one per site; the uids of sites and imports are below it."""
_UPLOAD_PACK: Final = (
    *(sys.executable, "-I", "-S", "-X", "utf8"),
    str(Path(confined.__file__).with_name("upload_pack.py")),
)


@dataclass(frozen=True)
class DeployKey:
    """One key for all repositories of one host. `host_key` as in known_hosts; `public_key` as a line of
    authorized_keys."""

    id: UUID
    site_id: UUID
    host: str
    port: int
    host_key: str
    public_key: str
    sealed_private_key: bytes
    made_at: datetime


async def deploy_keys_of(queryable: Queryable, site_id: UUID) -> list[DeployKey]:
    rows = await queryable.fetch(
        f"SELECT {_COLUMNS} FROM app_deploy_keys WHERE site_id = $1 ORDER BY host, port", site_id
    )
    return [_deploy_key(row) for row in rows]


async def deploy_key_for(queryable: Queryable, site: SiteRow, repository: SshRepository) -> DeployKey:
    """The site's key for the host of this repository. Raises `conflict` if there is none."""
    key = await _of_host(queryable, site.id, repository.host, repository.port)
    if key is None:
        raise conflict(
            f"{site.domain} has no deploy key for {repository.host}, port {repository.port}. Nothing was started.",
            hint=f"Create one with `svc app deploy-key-make {site.domain} {repository.host}`, and add its public "
            "half at that host.",
        )
    return key


async def write_deploy_key(
    tx: Transaction, sealer: Sealer, site: SiteRow, host: str, port: int, host_key: str
) -> DeployKey:
    """If the site already has a key for that host, the key stays and the host's own key is replaced. The site's row is
    locked. Raises `conflict` if the site has too many."""
    key = await _of_host(tx, site.id, host, port)
    if key is not None:
        await tx.execute("UPDATE app_deploy_keys SET host_key = $2 WHERE id = $1", key.id, host_key)
        return replace(key, host_key=host_key)
    if len(await deploy_keys_of(tx, site.id)) >= MOST:
        raise conflict(
            f"{site.domain} already has {MOST} deploy keys, which is the limit; none was created.",
            hint="Delete one of them first.",
        )
    private, public = new_key_pair(f"deploy@{site.domain}")
    row = await tx.fetchone(
        f"""INSERT INTO app_deploy_keys (site_id, host, port, host_key, public_key, sealed_private_key)
            VALUES ($1, $2, $3, $4, $5, $6) RETURNING {_COLUMNS}""",
        *(site.id, host, port, host_key, public, sealer.seal(private.encode(), _purpose(site.id))),
    )
    return _deploy_key(row)


async def delete_deploy_key(tx: Transaction, site_id: UUID, key_id: UUID) -> DeployKey | None:
    """Returns the deleted key; None if the site does not have it."""
    row = await tx.fetchrow(
        f"DELETE FROM app_deploy_keys WHERE site_id = $1 AND id = $2 RETURNING {_COLUMNS}", site_id, key_id
    )
    return None if row is None else _deploy_key(row)


def open_private_key(key: DeployKey, sealer: Sealer) -> str:
    """The private key in the format of OpenSSH. Only OpenSSH may get it."""
    return sealer.unseal(key.sealed_private_key, _purpose(key.site_id)).decode()


async def _of_host(queryable: Queryable, site_id: UUID, host: str, port: int) -> DeployKey | None:
    row = await queryable.fetchrow(
        f"SELECT {_COLUMNS} FROM app_deploy_keys WHERE site_id = $1 AND host = $2 AND port = $3", site_id, host, port
    )
    return None if row is None else _deploy_key(row)


def _deploy_key(row: Record) -> DeployKey:
    return DeployKey(**dict(row))


def _purpose(site_id: UUID) -> str:
    """The purpose names the site, so a row that is moved to another site cannot be unsealed."""
    return f"deploy key of {site_id}"


# git runs as the account of a site and reads a private repository without having its key. A site's programs can read
# whatever the site's account can. So git gets one end of a socket pair, and OpenSSH runs at the other end as an account
# that owns nothing (`confined.upload_pack`).
def upload_pack_order(
    key: DeployKey, sealer: Sealer, site: SiteRow, repository: SshRepository, address: str
) -> dict[str, Any]:
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
