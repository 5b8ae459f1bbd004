"""Which names of a zone its CAA records keep the panel's certificate authority from certifying (RFC 8659).

Only the sites whose certificates the panel orders count: a customer's own certificate may be of any authority. A record
that forbids the panel's authority is served all the same, since its owner may intend that; the zone has a warning as
long as it has such a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from svc_actors.panel.dns.records import NewRecord, ZoneRow, read_records
from svc_actors.store import Queryable
from svc_webhost.knot import RecordType
from svc_webhost.knot.data import CaaData, CaaTag, CnameData
from svc_webhost.knot.meaning import issuer_of
from svc_webhost.knot.names import is_within

_LONGEST_CHAIN: Final = 8
"""Authorities follow this many aliases of a name."""
_NAMED: Final = 5


@dataclass(frozen=True)
class CertificateOrder:
    """How a site's certificate is ordered. `identities`: the names of the authority in CAA records; `account`
    is the URL of the panel's account there, if known."""

    names: Sequence[str]
    challenge: str
    identities: Sequence[str]
    account: str | None


async def forbidding(queryable: Queryable, zone: ZoneRow) -> str | None:
    """What to tell the owner of a zone whose CAA records forbid a certificate of theirs."""
    records = await read_records(queryable, zone.name)
    if not any(record.type is RecordType.CAA for record in records):
        return None
    rows = await queryable.fetch(
        """SELECT acme_certificates.names, challenge, caa_identities, url
           FROM acme_certificates JOIN acme_accounts USING (directory) JOIN sites ON name = 'site:' || sites.id
           WHERE sites.owner_id = $1 AND caa_identities <> '{}' ORDER BY sites.domain""",
        zone.owner_id,
    )
    orders = [CertificateOrder(row["names"], row["challenge"], row["caa_identities"], row["url"]) for row in rows]
    names = [name for order in orders for name in forbidden(zone.name, records, order)]
    if not names:
        return None
    shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    issuers = " or ".join(dict.fromkeys(order.identities[0] for order in orders if order.identities))
    return (
        f"The CAA records forbid the authority of this server to certify {shown}: no certificate is issued or renewed "
        f"for them. Add a CAA record with the tag issue and the value {issuers}, or remove those that forbid it."
    )


def forbidden(zone: str, records: Sequence[NewRecord], order: CertificateOrder) -> list[str]:
    """The names of an order, within this zone, that its CAA records forbid."""
    sets: dict[str, list[CaaData]] = {}
    aliases: dict[str, str] = {}
    for record in records:
        if isinstance(record.data, CaaData):
            sets.setdefault(record.name, []).append(record.data)
        elif isinstance(record.data, CnameData):
            aliases[record.name] = record.data.target
    return [
        name
        for name in order.names
        if is_within(name.removeprefix("*."), zone)
        and not _allowed(_relevant(name.removeprefix("*."), zone, sets, aliases), order, wildcard=name.startswith("*."))
    ]


def _relevant(name: str, zone: str, sets: Mapping[str, list[CaaData]], aliases: Mapping[str, str]) -> Sequence[CaaData]:
    """The records of the name itself or of the nearest name above it that has any (RFC 8659, section 3)."""
    while is_within(name, zone):
        at = name
        for _ in range(_LONGEST_CHAIN):
            at = aliases.get(at, at)
        if at in sets:
            return sets[at]
        name = name.partition(".")[2]
    return []


def _allowed(records: Sequence[CaaData], order: CertificateOrder, *, wildcard: bool) -> bool:
    """Whether the records allow the certificate. A wildcard is subject to issuewild, or to issue if there is no
    issuewild (RFC 8659, section 4.3). Unknown critical tags are not considered: a zone here can have only tags that
    authorities know."""
    for tag in (CaaTag.ISSUEWILD, CaaTag.ISSUE) if wildcard else (CaaTag.ISSUE,):
        if same := [record for record in records if record.tag is tag]:
            return any(_allows(record.value, order) for record in same)
    return True


def _allows(value: str, order: CertificateOrder) -> bool:
    """Conditions of RFC 8657: one account, and some kinds of challenges."""
    try:
        issuer = issuer_of(value)
    except ValueError:
        return False
    methods = issuer.parameters.get("validationmethods")
    return (
        issuer.domain in order.identities
        and (methods is None or order.challenge in methods.split(","))
        and (order.account is None or issuer.parameters.get("accounturi", order.account) == order.account)
    )
