"""What a target holds of servers that were lost, looked at from a new one. Nothing is changed, there or here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_actors.errors import ServiceError, conflict, not_found, wrong_field
from svc_actors.host.restic import NoRepositoryError
from svc_actors.panel.backups.places import write_secret
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.backups.tools import kept_of
from svc_actors.panel.backups.unrecorded import COMPLETE
from svc_actors.panel.recovery.key import WrongKey
from svc_actors.panel.recovery.manifest import DamagedManifest, Manifest, ManifestSite, opened_manifest
from svc_actors.panel.recovery.remote import Kept, Programs, Remote
from svc_actors.store import PANEL_SCHEMA, Queryable, known_migrations

_AT_ONCE: Final = 2
_LOOK_SECONDS: Final = 20.0
"""For all repositories together: what was not looked at by then is said to be so."""


@dataclass(frozen=True)
class FoundSite:
    """`problem`: why it would not come back as of its newest backup; None where nothing is known to be in the way.
    `backups`: how many the target holds; None where that was not found out."""

    site: ManifestSite
    backups: int | None
    problem: str | None


@dataclass(frozen=True)
class Opened:
    kept: Kept
    manifest: Manifest
    dump: bytes


def chosen(there: list[Kept], snapshot: str | None) -> Kept:
    """The manifest that was named, or the newest where there is one server alone. Raises ServiceError."""
    if snapshot is not None:
        found = [kept for kept in there if kept.snapshot.startswith(snapshot)]
        if len(found) != 1:
            raise not_found("There is no such manifest at the target.", hint="Discover lists the manifests.")
        return found[0]
    if not there:
        raise not_found(
            "There is no manifest of a server at this target.", hint="Is it the folder or bucket that backups went to?"
        )
    if len({kept.server for kept in there}) > 1:
        raise conflict(
            "The target holds manifests of several servers.", hint="Discover lists them: name the manifest to use."
        )
    return there[0]


async def open_kept(remote: Remote, target: TargetRow, kept: Kept, recovery_key: str) -> Opened:
    """Raises ServiceError where it does not open, and nothing was changed."""
    try:
        data = await remote.read(target, kept.snapshot)
        manifest, dump = await trio.to_thread.run_sync(opened_manifest, data, recovery_key)
    except WrongKey:
        raise wrong_field(
            "recovery_key",
            "is not the key of this manifest; nothing was changed",
            hint="Was it rotated? Try the newest.",
        ) from None
    except DamagedManifest as error:
        raise conflict(f"{error} Nothing was changed.", hint="Discover shows earlier manifests.") from error
    said = (kept.server, kept.hostname, kept.taken_at, kept.target_id)
    if said != (manifest.install_id, manifest.hostname, manifest.taken_at, manifest.target_id):
        raise conflict(
            "The manifest does not match its name at the target: server, time or target differ. Nothing was changed.",
            hint="Somebody has changed what is at the target. Discover shows the other manifests.",
        )
    require_known(manifest)
    return Opened(kept, manifest, dump)


def require_known(manifest: Manifest) -> None:
    """Raises `conflict` for what a later release has written."""
    known: dict[str, int] = {}
    for migration in known_migrations(PANEL_SCHEMA):
        known[migration.component.value] = migration.number
    if any(number > known.get(name, 0) for name, number in manifest.migrations.items()):
        raise conflict(
            f"The manifest was written by release {manifest.release}, which is newer than this one.",
            hint="Install that release, or a later one, and recover with it.",
        )


async def what_is_here(queryable: Queryable) -> list[str]:
    """What of this server a recovery would replace, in words; a new server has none of it."""
    row = await queryable.fetchone(
        """SELECT (SELECT count(*) FROM sites) AS sites, (SELECT count(*) FROM users) AS people,
                  (SELECT count(*) FROM webhook_endpoints) AS webhooks, (SELECT count(*) FROM hosting_plans) AS plans,
                  (SELECT count(*) FROM backup_repositories) AS repositories"""
    )
    return [f"{number} {name}" for name, number in row.items() if number]


async def look_at_sites(remote: Remote, target: TargetRow, manifest: Manifest) -> list[FoundSite]:
    """Each site of a manifest, and whether the target holds its repository."""
    limit = trio.CapacityLimiter(_AT_ONCE)
    found: dict[UUID, FoundSite] = {}

    async def look(site: ManifestSite) -> None:
        async with limit:
            found[site.id] = await _look_at(remote, target, site)

    with trio.move_on_after(_LOOK_SECONDS):
        async with trio.open_nursery() as nursery:
            for site in manifest.sites:
                nursery.start_soon(look, site)
    return [found.get(site.id, FoundSite(site, None, "was not checked: it took too long")) for site in manifest.sites]


async def _look_at(remote: Remote, target: TargetRow, site: ManifestSite) -> FoundSite:
    if site.repository is None or site.repository_key is None or site.backup is None:
        return FoundSite(site, 0, "was never backed up")
    async with remote.work() as work:
        (work / "password").unlink()
        write_secret(work / "password", site.repository_key)
        try:
            there = await remote.restic.snapshots(Programs(), target.repository(site.repository, work, remote.sealer))
        except NoRepositoryError:
            return FoundSite(site, 0, "the target has no repository of it")
        except ServiceError as error:
            return FoundSite(site, None, error.message)
    backups = len({tag for each in there if COMPLETE in each.tags for tag in each.tags if tag.startswith("backup-")})
    return FoundSite(site, backups, None if kept_of(there, site.backup) else "its newest backup is not at the target")
