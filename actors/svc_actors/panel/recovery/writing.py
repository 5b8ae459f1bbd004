"""Writes manifests to every target: one in each round in which something was changed, and one a day.

A target that fails opens an alert and is retried; the previous manifest stays there. A panel makes one manifest at a
time.

A round looks for changes instead of being called after each one: so no operation can be added that forgets to call it.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import Severity, close_alerts, set_alert
from svc_actors.panel.backups.local_target import require_mounted
from svc_actors.panel.backups.repositories import KEY_PURPOSE
from svc_actors.panel.backups.targets import TargetRow, all_targets
from svc_actors.panel.jobs import JobClass, JobRun, NewJob
from svc_actors.panel.recovery.key import fingerprint_of
from svc_actors.panel.recovery.manifest import Manifest, ManifestSite, sealed_manifest
from svc_actors.panel.recovery.records import (
    KeyRow,
    change_state,
    read_key,
    write_manifest,
    write_manifest_error,
)
from svc_actors.panel.recovery.remote import Remote, StoredManifest
from svc_actors.sealing import Sealer
from svc_actors.store import Database, DumpError, Transaction
from svc_common.errors import ServiceError, conflict

ROUND_SECONDS: Final = 60.0
"""Seconds between rounds: all changes within one round lead to one manifest."""
# The pause before a failed target is tried again: each attempt dumps the database and runs restic over the network.
AGAIN: Final = timedelta(minutes=5)
DAILY: Final = timedelta(hours=24)
# The age of a daily manifest that is two hours late. From then on its alert is critical.
TOO_OLD: Final = timedelta(hours=26)
KIND: Final = "recovery.manifest"
KEY_ALERT: Final = "recovery-key"
WITHOUT: Final = (
    *("audit", "audit_exports", "audit_seals", "event", "event_inbox", "list_counts", "list_changes"),
    *("sessions", "pending_sign_ins", "password_links", "sign_in_links", "sign_in_attempts", "idempotency_keys"),
    *("mails", "alerts_mailed", "webhook_deliveries", "job_lines", "database_exports", "file_uploads"),
    *("imports", "import_sites", "health_checks", "health_events", "update_looks", "update_runs"),
)
"""Tables whose rows are in no manifest. They are long and only read to look back (audit, log lines, events), or have no
use on another server (sessions, links), or would be sent a second time (mails, webhooks)."""

Dump = Callable[[Callable[[bytes], None], Sequence[str]], Awaitable[None]]
"""Dumps the panel's database in pieces, without the rows of some tables."""
_ALERT: Final = "recovery-manifest:"

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.recovery")


def alert_of(target_id: UUID) -> str:
    return f"{_ALERT}{target_id}"


@dataclass
class Manifests:
    """One per process. `addresses`: the addresses at which this server's sites are reached."""

    database: Database
    sealer: Sealer
    sealing_key: Callable[[], bytes]
    remote: Remote
    dump: Dump
    addresses: Callable[[], Sequence[IPv4Address | IPv6Address]]
    _one: trio.Lock = field(default_factory=trio.Lock)

    async def round(self) -> None:
        """Write the manifests that are due."""
        targets, key = await all_targets(self.database), await read_key(self.database)
        await self.database.transact(partial(self._judge_key, wanted=bool(targets) and key is None))
        if key is None:
            return
        state, now = await change_state(self.database), datetime.now(UTC)
        rows = {row["target_id"]: row for row in await self.database.fetch("SELECT * FROM recovery_manifests")}

        def is_due(target: TargetRow) -> bool:
            row = rows.get(target.id)
            if row is None:
                return True
            # After a failed attempt the state is not stored, so the target stays due; only the pause has to pass.
            if row["error"] is not None:
                return bool(now - row["tried_at"] >= AGAIN)
            return bool(row["state"] != state or now - row["written_at"] >= DAILY)

        if due := [target for target in targets if is_due(target)]:
            await self._write(key, due)

    async def write(self, run: JobRun) -> None:
        """The step of the job: write to all targets now."""
        key, targets = await read_key(self.database), await all_targets(self.database)
        if key is None:
            raise conflict(
                "There is no recovery key, so no manifest could be opened later; none was written.",
                hint="Create a recovery key first.",
            )
        if not targets:
            raise conflict("There is no target for the manifest; none was written.", hint="Add a target first.")
        failed = await self._write(key, targets)
        for target in targets:
            await run.log(f"{target.name}: {failed.get(target.id, 'the manifest is there.')}")
        if failed:
            names = ", ".join(target.name for target in targets if target.id in failed)
            raise conflict(
                f"{len(failed)} of {len(targets)} targets did not get the new manifest: {names}.",
                hint=next(iter(failed.values())),
            )

    async def _write(self, key: KeyRow, targets: Sequence[TargetRow]) -> dict[UUID, str]:
        """Write to these targets; returns the reason for each target that failed."""
        failed: dict[UUID, str] = {}
        async with self._one:
            # Read before the database is dumped: if a change comes in between, the state differs afterwards, and
            # another manifest is written.
            state = await change_state(self.database)
            try:
                manifest, dump = await self._make()
            except (DumpError, ServiceError) as error:
                for target in targets:
                    failed[target.id] = f"The database could not be read: {error}"
                    await self._failed(target, failed[target.id])
                return failed
            data_key = key.data_key(self.sealer)
            for target in targets:
                # All targets get the same dump, but each its own sealed manifest, which names its target.
                own = manifest.model_copy(update={"target_id": target.id})
                kept = StoredManifest(
                    "", own.install_id, own.hostname, own.taken_at, fingerprint_of(data_key), target.id
                )
                try:
                    await require_mounted(self.database, target)
                    sealed = await trio.to_thread.run_sync(sealed_manifest, own, dump, data_key, key.wrapped)
                    await self.remote.write(target, kept, sealed)
                except ServiceError as error:
                    failed[target.id] = error.message
                    await self._failed(target, error.message)
                else:
                    await self.database.transact(
                        partial(self._written, target=target, state=state, taken_at=own.taken_at, size=len(sealed))
                    )
        return failed

    async def _make(self) -> tuple[Manifest, bytes]:
        """The manifest and the dump, not for a particular target yet."""
        row = await self.database.fetchone("SELECT install_id, now() AS at FROM panel_installation")
        migrations = await self.database.fetch(
            "SELECT component, max(number) AS number FROM schema_migration GROUP BY 1"
        )
        pieces: list[bytes] = []
        # Read separately from the dump, and so perhaps a moment older. This list is for discovery; a recovery uses the
        # dump.
        sites = await self._sites()
        await self.dump(pieces.append, WITHOUT)
        dump = b"".join(pieces)
        manifest = Manifest(
            release=version("svc"),
            install_id=row["install_id"],
            target_id=UUID(int=0),
            hostname=re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "server",
            data_dir=str(self.remote.places.folders.data),
            taken_at=row["at"],
            migrations={each["component"]: each["number"] for each in migrations},
            addresses=tuple(self.addresses()),
            sealing_key=self.sealing_key().hex(),
            sites=sites,
            dump_bytes=len(dump),
            dump_sha256=hashlib.sha256(dump).hexdigest(),
        )
        return manifest, dump

    async def _sites(self) -> tuple[ManifestSite, ...]:
        rows = await self.database.fetch(
            """SELECT sites.id, sites.domain, sites.type, users.email AS owner, backup_repositories.id AS repository,
                      sealed_key,
                      newest.id AS backup, newest.created_at AS backup_at
               FROM sites JOIN users ON users.id = owner_id
               LEFT JOIN backup_repositories ON site_id = sites.id
               LEFT JOIN LATERAL (
                   SELECT id, created_at FROM site_backups
                   WHERE repository_id = backup_repositories.id AND status = 'completed'
                   ORDER BY created_at DESC LIMIT 1) AS newest ON true
               ORDER BY number"""
        )
        return tuple(
            ManifestSite(
                **{name: value for name, value in row.items() if name != "sealed_key"},
                repository_key=self.sealer.unseal(row["sealed_key"], KEY_PURPOSE).decode()
                if row["sealed_key"]
                else None,
            )
            for row in rows
        )

    async def _written(self, tx: Transaction, target: TargetRow, state: str, taken_at: datetime, size: int) -> None:
        await write_manifest(tx, target.id, state, taken_at, size)
        await set_alert(tx, alert_of(target.id), None)

    async def _failed(self, target: TargetRow, why: str) -> None:
        async def write(tx: Transaction) -> None:
            await write_manifest_error(tx, target.id, why)
            at = await tx.fetchval("SELECT written_at FROM recovery_manifests WHERE target_id = $1", target.id)
            since = f"the newest one there was taken at {at:%Y-%m-%d %H:%M} UTC" if at else "it has none"
            old = at is None or datetime.now(UTC) - at > TOO_OLD
            await set_alert(
                tx,
                alert_of(target.id),
                f"The recovery manifest could not be written to {target.name}; {since}: {why}",
                severity=Severity.CRITICAL if old else Severity.WARNING,
            )

        await self.database.transact(write)
        log.warning("recovery.manifest_failed", target=target.name, error=why)

    async def _judge_key(self, tx: Transaction, wanted: bool) -> None:
        # `wanted` is false without targets, because there is nothing to open then. The alerts of removed targets are
        # closed here, because no write to them will do it.
        message = (
            "There is no recovery key: backups are copied elsewhere, and nobody can open them once this server is lost."
        )
        await set_alert(tx, KEY_ALERT, message if wanted else None)
        kept = [alert_of(row["id"]) for row in await tx.fetch("SELECT id FROM backup_targets")]
        await close_alerts(tx, _ALERT, keep=kept)


def manifest_job() -> NewJob:
    return NewJob(KIND, "Write the recovery manifest", JobClass.SYSTEM, ("write",))


def sealing_key_of(folder: Path) -> Callable[[], bytes]:
    """A function that reads the key under which the database's secrets are sealed."""
    # Read each time a manifest is made, so that the key need not be kept in memory.
    return (folder / "secret.key").read_bytes
