"""Finds out, on a new server, what a target holds of lost servers. Nothing is changed, neither at the target nor here.

Names and tags at the target are not trusted: everybody with write access could relabel the manifest of another server,
or an old manifest as the newest. A manifest that opens says which server and time it is of, and its tags have to agree.
The removal of newer manifests cannot be detected here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.places import write_secret
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.panel.backups.tools import complete_snapshot_ids
from svc_actors.panel.backups.unrecorded import COMPLETE
from svc_actors.panel.recovery.key import WrongKey
from svc_actors.panel.recovery.manifest import DamagedManifest, Manifest, ManifestSite, opened_manifest
from svc_actors.panel.recovery.remote import Programs, Remote, StoredManifest
from svc_actors.store import PANEL_SCHEMA, Queryable, known_migrations, newest_numbers
from svc_common.errors import ServiceError, conflict, not_found, wrong_field
from svc_webhost.restic import NoRepositoryError

# The most repositories that are listed at once: for each, a restic process asks the target over the network.
_AT_ONCE: Final = 2
_LOOK_SECONDS: Final = 20.0
"""For all repositories together, because a caller waits for the answer. Sites that were not checked in this time are
named."""


@dataclass(frozen=True)
class FoundSite:
    """`problem`: why the site could not be restored as of its newest backup; None if no reason is known. `backups`: how
    many the target holds; None if this is not known."""

    site: ManifestSite
    backups: int | None
    problem: str | None


@dataclass(frozen=True)
class DecryptedManifest:
    kept: StoredManifest
    manifest: Manifest
    dump: bytes


def chosen(there: list[StoredManifest], snapshot: str | None) -> StoredManifest:
    """The named manifest, or the newest if all manifests are of the same server. Raises ServiceError."""
    if snapshot is not None:
        # As with restic, the first characters of a snapshot's id suffice if they are unambiguous.
        found = [kept for kept in there if kept.snapshot.startswith(snapshot)]
        if len(found) != 1:
            raise not_found(
                "There is no such manifest at the target.", hint="`svc recover discover` lists the manifests."
            )
        return found[0]
    if not there:
        raise not_found(
            "There is no manifest of a server at this target.", hint="Is it the folder or bucket that backups went to?"
        )
    # Several servers may copy to one target. Becoming the wrong server cannot be undone, so the caller has to choose.
    if len({kept.server for kept in there}) > 1:
        raise conflict(
            "The target holds manifests of several servers.",
            hint="`svc recover discover` lists them: name the manifest to use.",
        )
    return there[0]


async def open_manifest(
    remote: Remote, target: TargetRow, stored: StoredManifest, recovery_key: str
) -> DecryptedManifest:
    """Read and open a manifest. Raises ServiceError if it does not open; then nothing was changed."""
    try:
        data = await remote.read(target, stored.snapshot)
        manifest, dump = await trio.to_thread.run_sync(opened_manifest, data, recovery_key)
    except WrongKey:
        raise wrong_field(
            "recovery_key",
            "is not the key of this manifest; nothing was changed",
            hint="If the key was rotated, try the newest manifest.",
        ) from None
    except DamagedManifest as error:
        raise conflict(
            f"{error} Nothing was changed.", hint="`svc recover discover` lists earlier manifests."
        ) from error
    # The tags are outside the encryption. If they do not match the manifest, they are forged, or the manifest was
    # copied from another target.
    said = (stored.server, stored.hostname, stored.taken_at, stored.target_id)
    if said != (manifest.install_id, manifest.hostname, manifest.taken_at, manifest.target_id):
        raise conflict(
            "The manifest does not match its name at the target: server, time or target differ. Nothing was changed.",
            hint="Somebody has changed the contents of the target. `svc recover discover` lists the other manifests.",
        )
    require_known(manifest)
    return DecryptedManifest(stored, manifest, dump)


def require_known(manifest: Manifest) -> None:
    """Raises `conflict` if a later release has written the manifest."""
    # Judged by the dump's migrations and not by its version: a dump from an older schema can be migrated, one from a
    # newer schema cannot.
    known = newest_numbers(known_migrations(PANEL_SCHEMA))
    if any(number > known.get(name, 0) for name, number in manifest.migrations.items()):
        raise conflict(
            f"The manifest was written by release {manifest.release}, which is newer than this one.",
            hint="Install that release, or a later one, and recover with it.",
        )


async def replaced_contents(queryable: Queryable) -> list[str]:
    """What a recovery would replace on this server, in words; empty on a new server."""
    row = await queryable.fetchone(
        """SELECT (SELECT count(*) FROM sites) AS sites, (SELECT count(*) FROM users) AS people,
                  (SELECT count(*) FROM webhook_endpoints) AS webhooks, (SELECT count(*) FROM hosting_plans) AS plans,
                  (SELECT count(*) FROM backup_repositories) AS repositories"""
    )
    return [f"{number} {name}" for name, number in row.items() if number]


async def find_site_backups(remote: Remote, target: TargetRow, manifest: Manifest) -> list[FoundSite]:
    """Each site of a manifest, and whether the target holds its newest backup."""
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
        # `work` contains the public password of the manifests' repository. A site's repository has its own password,
        # which is in the manifest.
        (work / "password").unlink()
        write_secret(work / "password", site.repository_key)
        try:
            there = await remote.restic.snapshots(Programs(), target.repository(site.repository, work, remote.sealer))
        except NoRepositoryError:
            return FoundSite(site, 0, "the target has no repository of it")
        except ServiceError as error:
            return FoundSite(site, None, error.message)
    backups = len({tag for each in there if COMPLETE in each.tags for tag in each.tags if tag.startswith("backup-")})
    return FoundSite(
        site, backups, None if complete_snapshot_ids(there, site.backup) else "its newest backup is not at the target"
    )
