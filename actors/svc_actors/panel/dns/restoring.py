"""Records of zones after a loss: restored from a backup, and moved to the addresses of another server.

Each name for which the backup has records gets exactly those. Other names, and the panel's own records, stay. A name
also stays as it is if its records from the backup conflict with current ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from svc_actors.panel.dns.records import NewRecord, RecordRow
from svc_actors.panel.dns.rules import check
from svc_actors.store import Transaction
from svc_common.errors import ServiceError
from svc_webhost.knot import RecordType

_ROUNDS: Final = 3
"""How many times refused names are tried. A record may lead only to a name that is no alias, so a name rarely waits for
more than one other name."""


@dataclass(frozen=True)
class ZoneChange:
    """`refused`: names that stay as they are, with the reason."""

    removed: list[RecordRow] = field(default_factory=list)
    added: list[NewRecord] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def change_of(
    zone: str, nameservers: Collection[str], there: Sequence[RecordRow], records: Mapping[str, Sequence[NewRecord]]
) -> ZoneChange:
    """`records` is by name. The records of a name may conflict with current records of another name that this change
    replaces. Such a name is tried again after the other one."""
    change = ZoneChange()
    left: list[NewRecord] = list(there)
    waiting = sorted(records)
    for _ in range(_ROUNDS):
        change.refused.clear()
        for name in waiting:
            own = [record for record in there if record.name == name and not record.managed]
            if {_told(record) for record in own} == {_told(record) for record in records[name]}:
                continue
            beside = [record for record in left if record not in own]
            try:
                # A DS record can only be added after the delegation.
                for record in sorted(records[name], key=lambda record: record.type is not RecordType.NS):
                    check(zone, nameservers, beside, record)
                    beside.append(record)
            except ServiceError as error:
                change.refused[name] = error.message
                continue
            change.removed.extend(own)
            change.added.extend(records[name])
            left = beside
        if len(change.refused) in (0, len(waiting)):
            break
        waiting = sorted(change.refused)
    return change


def _told(record: NewRecord) -> tuple[int, str]:
    return record.ttl, record.data.model_dump_json()


async def move_addresses(
    tx: Transaction, old: Iterable[IPv4Address | IPv6Address], new: Iterable[IPv4Address | IPv6Address]
) -> tuple[list[str], list[str]]:
    """Replace old addresses in records by the first new address of the same family. Returns the names of the changed
    records, and the names that still point to the old server because the new one has no address of that family."""
    own = list(new)
    moved, left = [], []
    for address in old:
        if address in own:
            continue
        follower = next((each for each in own if each.version == address.version), None)
        rows = await tx.fetch(
            """SELECT id, zone, name, type, data FROM dns_records
               WHERE type IN ('A', 'AAAA') AND data ->> 'address' = $1""",
            str(address),
        )
        for row in rows:
            if follower is None:
                left.append(f"{row['name']} {row['type']} {address}")
                continue
            data = row["data"] | {"address": str(follower)}
            there = await tx.fetchval(
                "SELECT true FROM dns_records WHERE zone = $1 AND name = $2 AND type = $3 AND md5(data::text) = "
                "md5($4::jsonb::text)",
                row["zone"],
                row["name"],
                row["type"],
                data,
            )
            if there:
                await tx.execute("DELETE FROM dns_records WHERE id = $1", row["id"])
            else:
                await tx.execute("UPDATE dns_records SET data = $2 WHERE id = $1", row["id"], data)
            await tx.execute("UPDATE dns_zones SET revision = revision + 1 WHERE name = $1", row["zone"])
            moved.append(f"{row['name']} {row['type']} {address} is {follower} now")
    return moved, left
