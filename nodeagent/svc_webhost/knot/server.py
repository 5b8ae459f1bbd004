"""Manages Knot: makes it serve exactly the given zones.

Everything may be repeated after any failure. `agree` compares a whole zone with what Knot serves and changes the
difference in one transaction of Knot, so that a resolver sees the old zone or the new one, and a zone that was purged
or edited by hand comes back. One process manages one Knot; callers must not change one zone concurrently.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import trio

from svc_common.durable import hold
from svc_webhost.knot.configuration import KnotFolders, KnotSettings, server_configuration, zone_configuration
from svc_webhost.knot.control import Conversation, Item, KnotAway, KnotError, Unit, conversation
from svc_webhost.knot.zone import ResourceRecord, ServedZone, Zone, difference
from svc_webhost.launcher import Launcher, LauncherError, Service, ServiceName

SERVICE: Final = ServiceName("knot")
PROGRAM: Final = "/usr/sbin/knotd"
START_SECONDS: Final = 15.0
_LOOK: Final = 0.05
_SERIALS_ONLY: Final = "s"
"""The filter of `knotc zone-status +serial`."""
_FORCED: Final = "F"
"""The flag of `knotc -f`."""
_NO_ZONE: Final = "no such zone found"
_STALE: Final = "too many transactions"


@dataclass(frozen=True)
class ZoneOutcome:
    """Knot serves the zone as requested. `changed`: it did not before."""

    serial: int
    changed: bool


class NameServer(Protocol):
    """Every method raises `KnotError`: `KnotAway` if Knot does not answer."""

    async def ensure(self) -> None:
        """Make Knot run with its settings, and answer."""
        ...

    async def serials(self) -> dict[str, int | None]:
        """The configured zones with their serials; None for one without contents."""
        ...

    async def read(self, name: str) -> ServedZone | None:
        """The zone as it is served; None if it is not configured."""
        ...

    async def agree(self, zone: Zone, last_serial: int | None = None) -> ZoneOutcome:
        """Make Knot serve `zone` exactly. `last_serial` is the highest that it is known to have had."""
        ...

    async def add(self, names: Iterable[str]) -> None:
        """Configure these zones; new ones are without contents."""
        ...

    async def remove(self, names: Iterable[str]) -> None:
        """Stop serving these zones, and delete everything of them."""
        ...


class KnotServer:
    """A Knot in a folder of its own. `clock` returns Unix time."""

    def __init__(
        self, folder: Path, settings: KnotSettings, launcher: Launcher, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.folders = KnotFolders(folder)
        self.settings = settings
        self._launcher = launcher
        self._clock = clock
        self._reloading = trio.Lock()

    def service(self) -> Service:
        """Knot starts as root, binds its ports, and changes to the user of its configuration. Other settings are
        another service: addresses cannot be changed while it runs."""
        rendered = server_configuration(self.settings, self.folders)
        return Service(
            name=SERVICE,
            command=(PROGRAM, "--config", str(self.folders.configuration)),
            environment={"SVC_CONFIGURATION": hashlib.sha256(rendered.encode()).hexdigest()[:16]},
            log=self.folders.log,
        )

    async def ensure(self) -> None:
        try:
            await trio.to_thread.run_sync(self._prepare)
            await self._launcher.ensure(self.service())
        except (LauncherError, OSError) as error:
            raise KnotAway(f"Knot cannot be started: {error}") from error
        with trio.move_on_after(START_SECONDS):
            while True:
                try:
                    await self._ask("status")
                    return
                except KnotAway:
                    await trio.sleep(_LOOK)
        raise KnotAway(f"Knot does not answer {START_SECONDS:.0f} seconds after its start; {self.folders.log} says why")

    async def serials(self) -> dict[str, int | None]:
        return {
            unit.items[Item.ZONE].lower().removesuffix("."): _serial_of(unit)
            for unit in await self._ask("zone-status", filter=_SERIALS_ONLY)
            if unit.items.get(Item.TYPE) == "serial"
        }

    async def read(self, name: str) -> ServedZone | None:
        async with conversation(self.folders.socket) as knot:
            return await _read(knot, name)

    async def agree(self, zone: Zone, last_serial: int | None = None) -> ZoneOutcome:
        if (await self.read(zone.name)) is None:
            await self.add([zone.name])
        async with conversation(self.folders.socket) as knot:
            served = await _read(knot, zone.name)
            if served is None:
                raise KnotError(f"{zone.name}: Knot does not know the zone after it was configured")
            changes = difference(zone, served, now=int(self._clock()), last_serial=last_serial)
            if not changes and served.serial is not None:
                return ZoneOutcome(served.serial, changed=False)
            at = f"{zone.name}."
            await _begin(knot, at)
            try:
                for owner, type_ in changes.unset:
                    await knot.ask("zone-unset", zone=at, owner=f"{owner}.", type=type_)
                if changes.soa is not None and served.soa is not None:
                    await knot.ask("zone-unset", zone=at, owner=at, type="SOA")
                for record in (*([changes.soa] if changes.soa is not None else []), *changes.set):
                    await _set(knot, at, record)
                await knot.ask("zone-commit", zone=at)
            except KnotAway:
                raise
            except KnotError:
                # Aborted, because a refused change must not be committed together with the next one.
                await knot.ask("zone-abort", zone=at)
                raise
            served = await _read(knot, zone.name)
        if served is None or served.serial is None or served.records != zone.served:
            raise KnotError(f"{zone.name}: Knot accepted the change but does not serve it")
        return ZoneOutcome(served.serial, changed=True)

    async def add(self, names: Iterable[str]) -> None:
        def write() -> None:
            for name in names:
                hold(self.folders.zone(name), zone_configuration(name))

        await trio.to_thread.run_sync(write)
        await self._reload()

    async def remove(self, names: Iterable[str]) -> None:
        gone = list(names)
        known = await self.serials()
        for name in gone:
            if name in known:
                await self._ask("zone-purge", zone=f"{name}.", flags=_FORCED)

        def unlink() -> None:
            for name in gone:
                self.folders.zone(name).unlink(missing_ok=True)

        await trio.to_thread.run_sync(unlink)
        await self._reload()

    async def _reload(self) -> None:
        async with self._reloading:
            await self._ask("reload")

    async def _ask(self, command: str, **items: str) -> list[Unit]:
        async with conversation(self.folders.socket) as knot:
            return await knot.ask(command, **items)

    def _prepare(self) -> None:
        """The folder is root's, so that Knot cannot change its own configuration; it writes to two folders of its
        own."""
        folders = self.folders
        folders.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folders.zones.mkdir(mode=0o755, exist_ok=True)
        for own in (folders.database, folders.run):
            own.mkdir(mode=0o750, exist_ok=True)
            shutil.chown(own, self.settings.user, self.settings.group)
        hold(folders.configuration, server_configuration(self.settings, folders))


async def _read(knot: Conversation, name: str) -> ServedZone | None:
    try:
        units = await knot.ask("zone-read", zone=f"{name}.")
    except KnotAway:
        raise
    except KnotError as error:
        if _NO_ZONE in str(error):
            return None
        raise
    return ServedZone.of(
        ResourceRecord.parsed(
            unit.items[Item.OWNER], unit.items[Item.TTL], unit.items[Item.TYPE], unit.items[Item.DATA]
        )
        for unit in units
        if Item.DATA in unit.items
    )


async def _begin(knot: Conversation, at: str) -> None:
    """Start a transaction, aborting one that a killed core has left open."""
    try:
        await knot.ask("zone-begin", zone=at)
    except KnotAway:
        raise
    except KnotError as error:
        if _STALE not in str(error):
            raise
        await knot.ask("zone-abort", zone=at)
        await knot.ask("zone-begin", zone=at)


async def _set(knot: Conversation, at: str, record: ResourceRecord) -> None:
    await knot.ask(
        "zone-set", zone=at, owner=f"{record.owner}.", ttl=str(record.ttl), type=record.type, data=record.data
    )


def _serial_of(unit: Unit) -> int | None:
    text = unit.items[Item.DATA]
    return int(text) if text.isdigit() else None
