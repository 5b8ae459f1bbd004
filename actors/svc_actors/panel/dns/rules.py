"""Rules for records within their zone. Whatever Knot or a resolver would refuse is refused here, with an explanation.

The rules come from the DNS: an alias is the only record of its name (RFC 1034, section 3.6.2), the targets of MX, NS
and SRV are not aliases (RFC 2181, section 10.3; RFC 2782), names below a delegation do not belong to this zone (RFC
1034, section 4.2.1), a wildcard cannot be delegated (RFC 4592). The panel owns the SOA and NS records of the zone
itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from svc_actors.panel.dns.records import NewRecord
from svc_actors.panel.sites.names import may_be_public
from svc_common.errors import ServiceError, conflict, wrong_field
from svc_webhost.knot import RecordType
from svc_webhost.knot.data import CnameData, MxData, NsData, SrvData
from svc_webhost.knot.names import is_within, to_ascii

MOST_RECORDS: Final = 2_000
MOST_BYTES_OF_A_SET: Final = 48_000
"""The most bytes of all records of one name and type: a DNS answer over TCP has at most 65,535 bytes."""
_T = RecordType
_AT_A_CUT: Final = frozenset({_T.NS, _T.DS, _T.A, _T.AAAA})
"""The types of records allowed at a delegation: the delegation itself (NS), its DS records, and glue."""
_GLUE: Final = frozenset({_T.A, _T.AAAA})
_SERVICE: Final = re.compile(r"_[a-z0-9-]+\._[a-z]+(\..+)?")
_PORT: Final = re.compile(r"(_\d{1,5}|\*)\._(tcp|udp|sctp)(\..+)?")


def full_name(given: str, zone: str) -> str:
    """Expands what a caller wrote: `@` is the zone, `www` is relative to it, and a name that ends in the zone's own
    name or in a dot is complete. Raises invalid."""
    if given in ("@", ""):
        return zone
    if given == "*":
        return f"*.{zone}"
    try:
        name = to_ascii(given, wildcard=True)
        if is_within(name, zone):
            return name
        if given.endswith("."):
            raise wrong_field(
                "name", f"{name} is not in the zone {zone}", hint="Leave the final dot out of a short name."
            )
        return to_ascii(f"{given}.{zone}", wildcard=True)
    except ValueError as error:
        raise wrong_field("name", str(error)) from error


def short_name_hint(given: str, zone: str) -> str | None:
    """What to say of a name that was taken as a short one, although it looks like the full name of another domain."""
    try:
        name = full_name(given, zone)
        own = to_ascii(given, wildcard=True)
    except (ServiceError, ValueError):
        return None
    if name != f"{own}.{zone}" or "." not in own or not may_be_public(own):
        return None
    return f"{own} was taken as a short name: the record is {name}. Names of other domains are not in the zone {zone}."


def check(zone: str, nameservers: Collection[str], others: Sequence[NewRecord], record: NewRecord) -> None:
    """Raises invalid for a record that is never possible, conflict for one that conflicts with `others`, the other
    records of the zone. `nameservers` are the zone's own."""
    check_name(zone, record)
    _check_size(others, record)
    _check_alias(others, record)
    _check_targets(zone, nameservers, others, record)
    _check_delegation(zone, others, record)


def check_removal(others: Sequence[NewRecord], record: NewRecord) -> None:
    """Raises conflict for a record that another one needs."""
    same = [other.type for other in others if other.name == record.name]
    if record.type is _T.NS and _T.DS in same and _T.NS not in same:
        raise conflict(f"The DS records of {record.name} need its NS record.", hint="Remove the DS records first.")


def check_name(zone: str, record: NewRecord) -> None:
    """Raises invalid for a record that is not possible at its name, whatever other records there are."""
    type_, name = record.type, record.name
    if name == zone and type_ in (_T.CNAME, _T.NS, _T.DS):
        why = {
            _T.CNAME: "a zone's own name cannot be an alias: it has NS and SOA records",
            _T.NS: "the name servers of the zone itself are this server's",
            _T.DS: "a DS record of the zone itself belongs in its parent zone, at the registrar",
        }
        raise wrong_field("name", why[type_])
    relative = name.removesuffix(zone).removesuffix(".")
    if relative.startswith("*") and type_ in (_T.NS, _T.DS):
        raise wrong_field("name", "a wildcard cannot be delegated")
    if type_ is _T.SRV and _SERVICE.fullmatch(relative) is None:
        raise wrong_field("name", "the name of an SRV record starts with a service and a protocol: _sip._tcp")
    if type_ is _T.TLSA and _PORT.fullmatch(relative) is None:
        raise wrong_field("name", "the name of a TLSA record starts with a port and a protocol: _443._tcp")


def _check_size(others: Sequence[NewRecord], record: NewRecord) -> None:
    if len(others) >= MOST_RECORDS:
        raise conflict(f"A zone has at most {MOST_RECORDS} records.", hint="Remove records that are no longer needed.")
    own = record.data.rdata()
    same = [other.data.rdata() for other in _of(others, record.name) if other.type is record.type]
    if own in same:
        raise conflict(f"{record.name} has this {record.type} record already.")
    if sum(len(each.to_wire() or b"") for each in [*same, own]) > MOST_BYTES_OF_A_SET:
        raise conflict(f"The {record.type} records of {record.name} would be longer than one answer of the DNS can be.")


def _check_alias(others: Sequence[NewRecord], record: NewRecord) -> None:
    there = _of(others, record.name)
    if record.type is _T.CNAME and there:
        raise conflict(
            f"{record.name} has a {there[0].type} record, and an alias (CNAME) cannot have others.",
            hint="Remove the other records of the name first.",
        )
    if any(other.type is _T.CNAME for other in there):
        raise conflict(
            f"{record.name} is an alias (CNAME), which cannot have other records.",
            hint="Remove the CNAME record first.",
        )


def _check_targets(zone: str, nameservers: Collection[str], others: Sequence[NewRecord], record: NewRecord) -> None:
    if isinstance(record.data, CnameData):
        if record.data.target == record.name:
            raise wrong_field("data.target", "an alias cannot lead to itself")
        needed = sorted({other.type.value for other in others if target_of(other) == record.name})
        if record.name in nameservers:
            needed.append("NS")
        if needed:
            raise conflict(f"{record.name} is the target of {' and '.join(needed)} records, which cannot be an alias.")
    target = target_of(record)
    if target is not None and any(other.type is _T.CNAME and other.name == target for other in others):
        raise conflict(
            f"{target} is an alias (CNAME), and {record.type} records must not lead to one.",
            hint="Give the name that the alias leads to.",
        )
    if isinstance(record.data, MxData):
        exchanges = [other.data.exchange for other in _of(others, record.name) if isinstance(other.data, MxData)]
        if exchanges and "." in (*exchanges, record.data.exchange):
            raise conflict(f"{record.name} cannot both take mail and say that it takes none (MX to `.`).")


def _check_delegation(zone: str, others: Sequence[NewRecord], record: NewRecord) -> None:
    """NS records at a name other than the zone's own are a zone cut: below it, other servers are responsible."""
    cuts = {other.name for other in others if other.type is _T.NS}
    if record.type is _T.DS and record.name not in cuts:
        raise conflict(
            f"{record.name} is not delegated, and a DS record vouches for a delegation.",
            hint="Add the NS records of the name first.",
        )
    if record.type is _T.NS:
        for other in others:
            if is_within(other.name, record.name) and not _may_be_at(other, record.name):
                raise conflict(
                    f"{other.name} has a {other.type} record, which resolvers no longer find once {record.name} is "
                    "delegated.",
                    hint="Remove it first, and have the other name servers serve it.",
                )
    if (above := delegation_above(zone, cuts, record)) is not None:
        raise conflict(
            f"{above} is delegated to other name servers, which are authoritative for {record.name}.",
            hint="Add the record there, or remove the NS records.",
        )


def delegation_above(zone: str, cuts: Collection[str], record: NewRecord) -> str | None:
    """The delegated name that hides the record: its own, or one above. `cuts` are the names with NS records."""
    above = next((cut for cut in _ancestors(record.name, zone) if cut in cuts), None)
    return None if above is None or _may_be_at(record, above) else above


def _may_be_at(record: NewRecord, cut: str) -> bool:
    return record.type in (_AT_A_CUT if record.name == cut else _GLUE)


def _ancestors(name: str, zone: str) -> Iterable[str]:
    """The name and its parents, without the zone itself."""
    while name != zone:
        yield name
        name = name.partition(".")[2]


def target_of(record: NewRecord) -> str | None:
    """The host that the record leads to, which must not be an alias; `.` for none."""
    match record.data:
        case MxData():
            return record.data.exchange
        case NsData() | SrvData():
            return record.data.target
        case _:
            return None


def _of(records: Iterable[NewRecord], name: str) -> list[NewRecord]:
    return [record for record in records if record.name == name]
