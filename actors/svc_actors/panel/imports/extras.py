"""Imports what sites have in addition to files and databases: tasks, certificates, DNS records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from svc_actors.panel.dns.records import NewRecord
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.files import site_folder
from svc_actors.panel.imports.applied import Applied, Parts
from svc_actors.panel.imports.plan import NOT_SERVED, names_of, registered, task_of
from svc_actors.panel.imports.records import SETTINGS, add_outcome
from svc_actors.panel.imports.zones import ImportedZones
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.schedules.cron import BadCronError, Cron, next_time, zone_of
from svc_actors.panel.schedules.records import insert_schedule
from svc_actors.panel.sites.records import SiteRow, lock_site
from svc_actors.store import Transaction, audit, service_itself
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.archives.model import FoundCertificate, FoundSite, Kind
from svc_webhost.archives.placing import ASIDE
from svc_webhost.confined.protocol import Read

_TASK_SECONDS: Final = 3600
MOST_FILE: Final = 1 << 20
CALLER: Final = service_itself("import.apply")


@dataclass(frozen=True)
class Note:
    """The item that a note of the outcome is about. `site` is the domain in the archive, and `part` the part of it
    (`records.parts_of`): the note stays when the import is applied again and the part is imported already."""

    kind: Kind
    name: str
    site: str | None = None
    part: str | None = None


class ExtrasImporter:
    """Imports the scheduled tasks, certificates and DNS zones of an account's sites. An item that cannot be imported is
    named in the outcome and does not stop the import."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._database = parts.database

    async def add_tasks(self, run: JobRun, applied: Applied, source: FoundSite, site: SiteRow) -> None:
        for number, line in enumerate(applied.account.tasks):
            task = task_of(applied.account, number)
            if task is None or task.domain != source.domain or not applied.choices.wants(Kind.TASK, str(number)):
                continue
            about = Note(Kind.TASK, line.command, source.domain, SETTINGS)
            try:
                following = next_time(Cron.parse(task.cron), zone_of("UTC"), self._parts.clock())
            except BadCronError as error:
                await self.note(run, applied, about, str(error))
                continue
            values = {
                "name": f"imported-{number + 1}",
                "kind": task.kind,
                "path": task.path,
                "args": list(task.args),
                "cron": task.cron,
                "time_zone": "UTC",
                "time_limit_seconds": _TASK_SECONDS,
                "enabled": following is not None,
                "next_run_at": following,
            }

            async def write(tx: Transaction, values: Mapping[str, Any] = values) -> None:
                locked = await lock_site(tx, site.id)
                there = await tx.fetchval(
                    "SELECT true FROM schedules WHERE site_id = $1 AND name = $2", site.id, values["name"]
                )
                if not there:
                    schedule = await insert_schedule(tx, locked, values)
                    told = {"site": site.domain, "kind": values["kind"], "cron": values["cron"]}
                    await audit.record(tx, CALLER, schedule.target(locked), told)

            await self._tolerating(run, applied, about, lambda: run.transact(write))

    async def upload(self, run: JobRun, applied: Applied, source: FoundCertificate, site: SiteRow) -> None:
        folder = site_folder(self._parts.folders, site)

        async def upload() -> None:
            text = ""
            for number in range(len(source.files)):
                read = Read(f"{ASIDE}/{number}.pem", 0, MOST_FILE)
                text += (await self._parts.files.ask(folder, read)).payload.decode(errors="replace") + "\n"
            chain, key = pem_parts(text)
            await self._parts.certificates.upload(CALLER, site, chain, key.encode(), in_job=True)
            await run.log(f"{site.domain} is served with its certificate.")

        about = Note(Kind.CERTIFICATE, source.domain, source.domain, SETTINGS)
        await self._tolerating(run, applied, about, upload)

    async def serve_zone(self, run: JobRun, applied: Applied, zone: str) -> None:
        about = Note(Kind.DNS, zone)
        if zone not in registered(applied.account, applied.choices):
            # The plan of the account says this of zones of subdomains; here the choices count too.
            await self.note(run, applied, about, NOT_SERVED)
            return
        names = names_of(applied.account, applied.choices)
        here = ImportedZones(applied.account.zones, names, self._parts.addresses).here(zone)
        wanted: dict[str, list[NewRecord]] = defaultdict(list)
        for record in here.records:
            wanted[record.name].append(record)

        async def serve() -> None:
            zone_actor = self._parts.actors.ref(DnsZone, zone)
            change = await zone_actor.ask(DnsZone.put_back, CALLER, applied.row.owner_id, wanted)
            row = await change.finished()
            for name, reason in change.result.items():
                await self.note(run, applied, Note(Kind.DNS, name), reason)
            if not row.served:
                await self.note(run, applied, about, f"recorded, and not served yet: {row.problem}")

        await self._tolerating(run, applied, about, serve)

    async def _tolerating(
        self, run: JobRun, applied: Applied, about: Note, work: Callable[[], Awaitable[None]]
    ) -> None:
        """If the work is refused, the reason goes into the outcome and the import continues."""
        try:
            await work()
        except ServiceError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                raise
            await self.note(run, applied, about, error.message)

    async def say(self, run: JobRun, applied: Applied, about: Note, reason: str, *, planned: bool) -> None:
        """A note, unless the plan has said so: then only the job's log has it."""
        if planned:
            await run.log(f"{about.kind.value} {about.name}: {reason}"[:1000])
        else:
            await self.note(run, applied, about, reason)

    async def note(self, run: JobRun, applied: Applied, about: Note, reason: str) -> None:
        told = {**asdict(about), "kind": about.kind.value, "name": about.name[:200], "reason": reason[:500]}
        await run.transact(lambda tx: add_outcome(tx, applied.row.id, [told]))
        await run.log(f"{about.kind.value} {about.name}: {reason}"[:1000])


def pem_parts(text: str) -> tuple[str, str]:
    """The certificates of PEM files, and the private key."""
    chain: list[str] = []
    key: list[str] = []
    block: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("-----BEGIN "):
            block, inside = [line], True
        elif inside:
            block.append(line)
            if line.startswith("-----END "):
                whole = "\n".join(block) + "\n"
                (key if "PRIVATE KEY" in line else chain if "CERTIFICATE" in line else []).append(whole)
                inside = False
    return "".join(chain), "".join(key[:1])
