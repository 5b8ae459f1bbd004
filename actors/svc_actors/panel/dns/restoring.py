"""Restores records of a zone from a backup: each name for which the backup has records gets exactly those.

Other names, and the panel's own records, stay. A name also stays as it is if its records from the backup conflict with
current ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from svc_actors.panel.dns.records import NewRecord, RecordRow
from svc_actors.panel.dns.rules import check
from svc_common.errors import ServiceError
from svc_webhost.knot import RecordType

_ROUNDS: Final = 3
"""A record leads to a name, which is no alias: names rarely wait for more than one other."""


@dataclass(frozen=True)
class ZoneChange:
    """`refused`: names that stay as they are, with the reason."""

    removed: list[RecordRow] = field(default_factory=list)
    added: list[NewRecord] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def change_of(
    zone: str, nameservers: Collection[str], there: Sequence[RecordRow], records: Mapping[str, Sequence[NewRecord]]
) -> ZoneChange:
    """`records` is by name. A name whose records conflict with those that another name has now, and will not have
    then, is tried again after that one."""
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
