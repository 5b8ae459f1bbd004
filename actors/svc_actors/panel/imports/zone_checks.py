"""Compares the zones of an imported site with those of its old host, and looks for each mail server's address."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.panel.dns.records import NewRecord, read_records, read_zone
from svc_actors.panel.imports.comparing import check
from svc_actors.panel.imports.plan import Choices, names_of
from svc_actors.panel.imports.zones import ADDRESSES, Answers, ImportedZones
from svc_actors.store import Queryable
from svc_common.outbound import Resolve
from svc_webhost.archives.model import Account, Kind
from svc_webhost.knot import RecordType
from svc_webhost.knot.data import MxData
from svc_webhost.knot.names import is_within

_SMTP: Final = 25
_ASKING_SECONDS: Final = 60.0
"""For the addresses of all mail servers of a site together."""
_LONGEST: Final = 400


class ZoneChecks:
    """`addresses`: those of this server. `resolve` asks the DNS for names of other zones."""

    def __init__(self, database: Queryable, addresses: Sequence[IPv4Address | IPv6Address], resolve: Resolve) -> None:
        self._database = database
        self._addresses = addresses
        self._resolve = resolve

    async def of(
        self, owner_id: UUID, names: Collection[str], account: Account, choices: Choices
    ) -> list[dict[str, Any]]:
        """Lines of the report; none without an imported zone. `names` are the site's."""
        zones = [
            zone.name
            for zone in account.zones
            if choices.wants(Kind.DNS, zone.name) and any(is_within(name, zone.name) for name in names)
        ]
        if not zones:
            return []
        imported = ImportedZones(account.zones, names_of(account, choices), self._addresses)
        problems: list[str] = []
        missing: list[str] = []
        targets: set[str] = set()
        for zone in zones:
            row = await read_zone(self._database, zone)
            if row is None or row.owner_id != owner_id:
                problems.append(f"{zone} is not served here")
                continue
            if not row.served:
                problems.append(
                    f"{zone} is not served as its records say: {row.problem or 'the name server is behind'}"
                )
            records = await read_records(self._database, zone)
            there = {(each.name, each.data) for each in records}
            expected = imported.here(zone).records
            missing += sorted({f"{each.name} {each.type}" for each in expected if (each.name, each.data) not in there})
            answers = Answers(records)
            for name in sorted(names):
                if is_within(name, zone) and not _leads(answers.at(name)):
                    problems.append(f"{name} has no address")
            targets |= {each.data.exchange for each in records if isinstance(each.data, MxData)} - {"."}
        mail = await self._mail(owner_id, sorted(targets))
        return [
            check("dns", not problems, "; ".join(problems)[:_LONGEST]),
            # The owner may have changed or removed these on purpose since.
            check("dns_records", not missing, f"differ from the import: {', '.join(missing)}"[:_LONGEST], stops=False),
            check("mail", not mail, "; ".join(mail)[:_LONGEST]),
        ]

    async def _mail(self, owner_id: UUID, targets: Sequence[str]) -> list[str]:
        """Targets of MX records that receive no mail, and why."""
        problems: dict[str, str] = dict.fromkeys(targets, "its address was not found in time")
        own = {str(address) for address in self._addresses}
        with trio.move_on_after(_ASKING_SECONDS):
            for target in targets:
                found = await self._found(owner_id, target)
                if own.intersection(found):
                    problems[target] = "it is this server, which keeps no mail"
                elif not found:
                    problems[target] = "it has no address"
                else:
                    del problems[target]
        return [f"{target}: {problem}" for target, problem in problems.items()]

    async def _found(self, owner_id: UUID, name: str) -> Collection[str]:
        """The addresses of a name: from the owner's zones on this server, which may not be delegated to it yet, or else
        from the DNS."""
        labels = name.split(".")
        zone = await self._database.fetchval(
            "SELECT name FROM dns_zones WHERE owner_id = $1 AND name = ANY($2) ORDER BY length(name) DESC LIMIT 1",
            owner_id,
            [".".join(labels[at:]) for at in range(len(labels))],
        )
        if zone is not None:
            records = await read_records(self._database, zone)
            cuts = {each.name for each in records if each.type is RecordType.NS}
            if not any(is_within(name, cut) for cut in cuts):
                return [each.data.rdata().to_text() for each in Answers(records).addresses(name)]
        try:
            return await self._resolve(name, _SMTP)
        except OSError:
            return []


def _leads(records: Sequence[NewRecord]) -> bool:
    return any(each.type in (*ADDRESSES, RecordType.CNAME) for each in records)
