"""Restores the configuration of a backup and verifies it: names, redirects, denied and protected paths, PHP, the
application and tasks in one transaction, then the records of the site's zones, then its certificate.

May be repeated.

Settings that keep visitors out (`close`) are served before the files of the backup are restored. A site without these
settings, for example another site to which the backup is restored, would otherwise show the files until the rest is
restored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from svc_actors.panel.apps.records import app_of, change_app
from svc_actors.panel.apps.variables import replace_variables, variables_of
from svc_actors.panel.backups.configuration import LISTS, Configuration, Part
from svc_actors.panel.backups.configuration_changes import Allowed, Change, ConfigurationAction, changes_of
from svc_actors.panel.certificates import SiteCertificates
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.claims import claim, set_redirected
from svc_actors.panel.sites.php import SitePhp
from svc_actors.panel.sites.records import SiteRow, change_record, lock_site, read_site
from svc_actors.panel.sites.site import Changed
from svc_actors.panel.sites.site import Site as SiteActor
from svc_actors.runtime import ActorSystem, DeliveryError
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Transaction, service_itself
from svc_actors.undelivered import why_undelivered
from svc_common.errors import conflict, unavailable

_CALLER: Final = service_itself("backup.restore")
_CLOSING: Final = tuple(each for each in LISTS if each.closes)
_RECORDED: Final = frozenset(Part) - {Part.RECORD, Part.CERTIFICATE}
"""The parts that are restored in one common transaction."""


@dataclass(frozen=True)
class ConfigurationRestore:
    database: Database
    actors: ActorSystem
    certificates: SiteCertificates
    allowed: Callable[[], Awaitable[Allowed]]
    sealer: Sealer

    async def close(self, site: SiteRow, configuration: Configuration) -> None:
        """Add the settings that keep visitors out and that the site lacks. Raises ServiceError if they are not served,
        and `conflict` if the site has no room for them: otherwise the files would be restored without them."""
        if not any(getattr(configuration, each.key) for each in _CLOSING):
            return
        allowed = await self.allowed()
        planned = await changes_of(self.database, self.sealer, site, configuration, allowed)
        parts = {each.part for each in _CLOSING}
        added = [change for change in planned if change.action is ConfigurationAction.ADD]
        for left_out in planned:
            if left_out.part in parts and left_out.action is ConfigurationAction.LEAVE_OUT:
                raise conflict(
                    f"visitors would get files that the backup keeps from them ({left_out})",
                    hint="Remove denied or protected paths that the site no longer needs, then restore it again.",
                )
        wanted = {part: _wanted(added, part) if part in parts else {} for part in Part}

        async def change(tx: Transaction, locked: SiteRow) -> Changed:
            await _put_back(tx, locked, configuration, allowed, wanted)
            return Changed(locked.target, {"restored": sorted(part for part in parts if wanted[part])})

        if any(wanted.values()):
            try:
                await finished(self.actors.ref(SiteActor, str(site.id)).ask(SiteActor.change, _CALLER, change))
            except DeliveryError as error:
                raise unavailable(why_undelivered(error)) from error
        there = await read_site(self.database, site.id)
        # It is not enough that an earlier attempt has recorded the settings: the web server must have taken them.
        if there is None or there.served < there.wanted:
            raise unavailable("the web server has not applied the denied and protected paths")

    async def restore(self, run: JobRun, site: SiteRow, configuration: Configuration) -> None:
        """Raises ServiceError if a part could not be restored; parts that were restored before stay."""
        allowed, caller = await self.allowed(), _CALLER
        planned = await changes_of(self.database, self.sealer, site, configuration, allowed)
        await run.log(
            *(str(change) for change in planned), *([] if planned else ["The configuration has no differences."])
        )
        wanted = {part: _wanted(planned, part) for part in Part}

        async def change(tx: Transaction, locked: SiteRow) -> Changed:
            await _put_back(tx, locked, configuration, allowed, wanted)
            await _put_app_back(tx, self.sealer, locked, configuration, wanted)
            return Changed(locked.target, {"restored": sorted(part for part in _RECORDED if wanted[part])})

        if any(wanted[part] for part in _RECORDED):
            await finished(self.actors.ref(SiteActor, str(site.id)).ask(SiteActor.change, caller, change))
        for zone, records in configuration.zones.items():
            names = {name: held for name, held in records.items() if name in wanted[Part.RECORD]}
            if names:
                ordered = await self.actors.ref(DnsZone, zone).ask(DnsZone.put_back, caller, site.owner_id, names)
                row = await ordered.finished()
                if not row.served:
                    await run.log(f"The zone {zone} is recorded, and not served yet: {row.problem}.")
        stored = configuration.certificate
        if wanted[Part.CERTIFICATE] and stored is not None and stored.key is not None:
            await self.certificates.upload(caller, site, stored.chain, stored.key.encode(), in_job=True)
        await self._verify(run, site, configuration, allowed)

    async def _verify(self, run: JobRun, site: SiteRow, configuration: Configuration, allowed: Allowed) -> None:
        async def read(tx: Transaction) -> list[Change]:
            return await changes_of(tx, self.sealer, await lock_site(tx, site.id), configuration, allowed)

        missing = [
            change
            for change in await self.database.transact(read)
            if change.action is not ConfigurationAction.LEAVE_OUT
        ]
        if missing:
            raise unavailable(
                f"{len(missing)} parts of the configuration are not what the backup holds: {missing[0]}.",
                hint="What was restored stays. Restore the configuration again.",
            )
        await run.log("The configuration is restored, except for what was left out.")


def _wanted(planned: list[Change], part: Part) -> dict[str, ConfigurationAction]:
    return {
        change.name: change.action
        for change in planned
        if change.part is part and change.action is not ConfigurationAction.LEAVE_OUT
    }


async def _put_back(
    tx: Transaction,
    site: SiteRow,
    configuration: Configuration,
    allowed: Allowed,
    wanted: dict[Part, dict[str, ConfigurationAction]],
) -> None:
    for stored in configuration.domains:
        match wanted[Part.NAME].get(stored.name):
            case ConfigurationAction.ADD:
                name = allowed.name(stored.name)
                await claim(tx, site.id, site.owner_id, [name], redirect_to_primary=stored.redirect_to_primary)
            case ConfigurationAction.CHANGE:
                await set_redirected(tx, site, stored.name, stored.redirect_to_primary and stored.name != site.domain)
    for stored_list in LISTS:
        for entry in getattr(configuration, stored_list.key):
            if entry.identity in wanted[stored_list.part]:
                await entry.put_back(tx, site)
    stored_site = configuration.site[0]
    if wanted[Part.HTTPS]:
        await change_record(tx, site, {"force_https": stored_site.force_https})
    if wanted[Part.FALLBACK_PAGE]:
        await change_record(tx, site, {"fallback_page": stored_site.fallback_page})
    if wanted[Part.CACHING]:
        await change_record(tx, site, {"cache_assets": stored_site.cache_assets})
    if wanted[Part.CHARSET]:
        await change_record(tx, site, {"utf8_pages": stored_site.utf8_pages})
    if wanted[Part.PHP]:
        restarts = SitePhp.model_validate(site.php).restarts
        php = SitePhp.model_validate(stored_site.php).model_copy(update={"restarts": restarts + 1})
        await change_record(tx, site, {"php": php.record})


async def _put_app_back(
    tx: Transaction,
    sealer: Sealer,
    site: SiteRow,
    configuration: Configuration,
    wanted: dict[Part, dict[str, ConfigurationAction]],
) -> None:
    """Restore the application's settings. The application uses them from its next start on, as after a change by
    hand."""
    if wanted[Part.APP]:
        app = await app_of(tx, site)
        await change_app(tx, app, configuration.app[0].model_dump(exclude={"runtime"}))
    restored = {each.name: each.value for each in configuration.variables if each.name in wanted[Part.VARIABLE]}
    if restored:
        unchanged = {each.name: None for each in await variables_of(tx, site.id)}
        await replace_variables(tx, sealer, site.id, unchanged | restored)
