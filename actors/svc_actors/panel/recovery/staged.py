"""The staged recovery: the lost server's dump and sealing key, complete on disk until this server has become it.

    recovery/staged/database.dump
    recovery/staged/order.json      the manifest, the key, and how this server reaches the target

Invariants:
- only root can read the folder, and it gets its final name once everything in it is on the disk;
- the core becomes the lost server before it serves anybody. A core that is killed meanwhile leaves the folder to the
  next one, which starts from the beginning: until the folder is gone, nobody has used the new database.

The running core does not replace its database under itself: its actors, caches and connections would continue with data
of the old one. It closes and opens again, so nothing in memory survives the exchange of the database and the sealing
key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio
from pydantic import BaseModel, ConfigDict

from svc_actors.panel.backups.local_target import marker_of
from svc_actors.panel.backups.targets import AnySettings, LocalSettings, write_target
from svc_actors.panel.databases.records import mark_all_for_rebuild
from svc_actors.panel.dns.restoring import move_addresses
from svc_actors.panel.jobs import enqueue
from svc_actors.panel.jobs.records import end_all
from svc_actors.panel.recovery.manifest import Manifest
from svc_actors.panel.recovery.records import remove_order, unfinished, write_source
from svc_actors.panel.recovery.sites import sites_job
from svc_actors.panel.sites.records import mark_all_unserved
from svc_actors.sealing import Sealer
from svc_actors.store import (
    PANEL_SCHEMA,
    Database,
    DatabaseUrls,
    Target,
    Transaction,
    audit,
    forget_marks,
    load,
    prepare_schema,
    service_itself,
)
from svc_common.durable import sync_folder
from svc_webhost.tree_removal import remove_tree

_PIECE: Final = 1 << 20

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.recovery")


class RecoveryOrder(BaseModel):
    """`target_id` is the id that the lost server uses for the target; `settings` and `secret` are what this server uses
    to reach it."""

    # The settings of the lost server are not used: its mounts or addresses may be different ones on this server.

    model_config = ConfigDict(frozen=True, extra="forbid")
    manifest: Manifest
    target_id: UUID
    settings: AnySettings
    secret: str | None


@dataclass(frozen=True)
class StagedRecovery:
    """The staged recovery in the panel's data folder."""

    data_dir: Path

    @property
    def folder(self) -> Path:
        return self.data_dir / "recovery" / "staged"

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    def write(self, order: RecoveryOrder, dump: bytes) -> None:
        # A folder under its final name is complete: with it, this server becomes the other server at its next start.
        new = self.folder.with_name("staged.new")
        remove_tree(new, ignore_errors=True)
        new.parent.mkdir(mode=0o700, exist_ok=True)
        new.mkdir(mode=0o700)
        _write(new / "database.dump", dump)
        _write(new / "order.json", order.model_dump_json().encode())
        sync_folder(new)
        remove_tree(self.folder, ignore_errors=True)
        new.rename(self.folder)
        sync_folder(self.folder.parent)

    def order(self) -> RecoveryOrder:
        return RecoveryOrder.model_validate_json((self.folder / "order.json").read_bytes())

    def dump(self) -> Iterator[bytes]:
        with (self.folder / "database.dump").open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def put_key(self, key: bytes) -> None:
        new = self.data_dir / "secret.key.recovered"
        new.unlink(missing_ok=True)
        _write(new, key)
        new.rename(self.data_dir / "secret.key")
        sync_folder(self.data_dir)

    def clear(self) -> None:
        """Remove a recovery that was not staged completely, and leftovers of one that is done: these contain all
        secrets of a server."""
        for left in (self.folder, self.folder.with_name("staged.new"), self.folder.with_name("staged.gone")):
            remove_tree(left, ignore_errors=True)

    def remove(self) -> None:
        """The rename is the commit: after it the recovery is done, even if the removal is interrupted."""
        gone = self.folder.with_name("staged.gone")
        remove_tree(gone, ignore_errors=True)
        self.folder.rename(gone)
        sync_folder(gone.parent)
        remove_tree(gone, ignore_errors=True)


async def become_staged(
    data_dir: Path, urls: DatabaseUrls, addresses: Sequence[IPv4Address | IPv6Address]
) -> Manifest | None:
    """Become the server whose manifest is staged, if there is one: replace the database and the sealing key. Nobody
    uses the database meanwhile."""
    staged = StagedRecovery(data_dir)
    if not await trio.to_thread.run_sync(lambda: staged.exists):
        await trio.to_thread.run_sync(staged.clear)
        return None
    order = await trio.to_thread.run_sync(staged.order)
    key = bytes.fromhex(order.manifest.sealing_key)
    # If the process is killed anywhere below, the next start drops the database and loads it again.
    async with Database.open(urls.owner, size=1, application_name="svc recovery") as owner:
        await owner.execute("DROP OWNED BY CURRENT_USER CASCADE")
    await load(urls.owner, staged.dump())
    await prepare_schema(urls, PANEL_SCHEMA)
    async with Database.open(urls.service, size=1, application_name="svc recovery") as database:
        await database.transact(
            partial(_begin, order=order, data_dir=data_dir, sealer=Sealer(key), addresses=addresses)
        )
    if isinstance(order.settings, LocalSettings):
        await trio.to_thread.run_sync(marker_of(order.target_id, order.settings.path).touch)
    # The key is written after the database: with the new key and the old database none of the old secrets would open.
    # If the process is killed in between, the next start repairs that, because it takes the key from the order.
    await trio.to_thread.run_sync(staged.put_key, key)
    # This database differs from the former one on purpose: with the old marks, the start would take it for a database
    # that has stepped back.
    await trio.to_thread.run_sync(forget_marks, data_dir)
    await trio.to_thread.run_sync(staged.remove)
    log.info("recovery.became", hostname=order.manifest.hostname, taken_at=order.manifest.taken_at.isoformat())
    return order.manifest


async def _begin(
    tx: Transaction,
    order: RecoveryOrder,
    data_dir: Path,
    sealer: Sealer,
    addresses: Sequence[IPv4Address | IPv6Address],
) -> None:
    """Adapts the lost server's records to this server, before anybody is served."""
    # Jobs that were running or queued on the lost server are ended: otherwise they would start here, on sites that have
    # no files yet.
    manifest = order.manifest
    await end_all(tx)
    server = Target("server", manifest.install_id, manifest.hostname)
    await audit.record(tx, service_itself("recovery.run"), server, {"taken_at": manifest.taken_at.isoformat()})
    # The lost server may itself have had an order to become another server.
    await remove_order(tx)
    await write_target(tx, sealer, order.target_id, order.settings, order.secret)
    await mark_all_unserved(tx)
    await mark_all_for_rebuild(tx)
    moved, left = await move_addresses(tx, manifest.addresses, addresses)
    notes = [f"DNS: {record}" for record in moved]
    notes += [f"DNS: {record} leads to the lost server; this server does not have that address." for record in left]
    old = ", ".join(str(address) for address in manifest.addresses)
    if old and set(manifest.addresses) != set(addresses):
        notes.append(
            f"The lost server had the addresses {old}: change records that point there in zones hosted elsewhere."
        )
    if manifest.data_dir != str(data_dir):
        notes.append(
            f"The lost server's data folder was {manifest.data_dir}, and this one's is {data_dir}: change settings "
            "of sites that contain it, such as DB_HOST of WordPress."
        )
    await write_source(tx, order.target_id, manifest.hostname, manifest.taken_at, notes)
    if job := await sites_job(tx, await unfinished(tx)):
        await enqueue(tx, job)


def _write(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
