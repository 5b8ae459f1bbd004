"""Compares the DKIM and SPF records of a site's domains with those that receivers need to accept the site's mail.

The records of zones that are delegated to this server are read from the database; those of other zones are looked up in
the DNS. A record that cannot be read makes the state `unknown` and is no error. SPF records are only recommended and
never written, because the panel does not know which other servers send mail for a domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import trio

from svc.panel.services import Panel
from svc.panel.settings import PanelSettings
from svc.registry.operation import Model
from svc_actors.panel.dns.records import RecordRow, read_records, read_zone
from svc_actors.panel.mail.keys import DkimKey, read_key
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database
from svc_webhost.delegation import DelegationError
from svc_webhost.knot.data import TxtData
from svc_webhost.txt_records import TxtUnknown

MOST_NAMES: Final = 50
"""The most names of one site that are looked up in the DNS for one answer."""
_END: Final = re.compile(r"[+~?-]?all|redirect=.*", re.IGNORECASE)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class DkimState(StrEnum):
    """SIGNED: mail is signed, and receivers find the key. WAITING: the domain's first mail makes the key. MISSING: mail
    is signed, and receivers find no key. ELSEWHERE: the zone is not on this server, and mail is not signed here.
    UNKNOWN: mail is signed, and whether receivers find the key is not known."""

    SIGNED = "signed"
    WAITING = "waiting"
    MISSING = "missing"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


class SpfState(StrEnum):
    """UNKNOWN: the record could not be read, or it is not known what it should contain."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


class MailDkim(Model):
    """`record` is the full name of the TXT record with `text` that the domain's zone should have."""

    state: DkimState
    record: str | None
    text: str | None
    advice: str | None


class MailSpf(Model):
    """`found` is the TXT record of the domain; `text` is what it should be."""

    state: SpfState
    found: str | None
    text: str | None
    advice: str | None


class MailDomain(Model):
    """A domain that a site may send from."""

    name: str
    zone: str
    dkim: MailDkim
    spf: MailSpf


@dataclass(frozen=True)
class _Zone:
    """`records` is None for a zone that is not this server's, or is another customer's."""

    name: str
    key: DkimKey | None
    records: Sequence[RecordRow] | None

    def texts(self, name: str) -> list[str]:
        records = self.records or ()
        return [record.data.text for record in records if record.name == name and isinstance(record.data, TxtData)]


class _World:
    """Answers of the DNS. Each record is looked up once, all of them concurrently."""

    def __init__(self, services: Panel) -> None:
        self._services = services
        self._delegated: dict[str, bool | DelegationError] = {}
        self._texts: dict[str, list[str] | TxtUnknown] = {}

    async def look_at_delegations(self, zones: Iterable[str]) -> None:
        async with trio.open_nursery() as looking:
            for zone in zones:
                looking.start_soon(self._look_at_delegation, zone)

    async def look_at_texts(self, names: Iterable[str]) -> None:
        async with trio.open_nursery() as looking:
            for name in names:
                looking.start_soon(self._look_at_texts, name)

    def asks_here(self, zone: str) -> bool | None:
        """Whether the zone is delegated to this server, so that receivers ask it; None if that is not known."""
        found = self._delegated[zone]
        return None if isinstance(found, DelegationError) else found

    def texts(self, name: str) -> list[str] | None:
        found = self._texts.get(name)
        return None if isinstance(found, TxtUnknown) else found

    async def _look_at_delegation(self, zone: str) -> None:
        own = set(self._services.authority.nameservers)
        try:
            found = await self._services.delegations.nameservers(zone)
            self._delegated[zone] = bool(found) and found <= own
        except DelegationError as error:
            self._delegated[zone] = error

    async def _look_at_texts(self, name: str) -> None:
        try:
            self._texts[name] = await self._services.txt_records(name)
        except TxtUnknown as error:
            self._texts[name] = error


async def mail_domains(services: Panel, site: SiteRow, spf: str | None) -> list[MailDomain]:
    """The domains of the site's names, its primary name's first. `spf`: what `expected_spf` says. Takes some seconds if
    the DNS does not answer."""
    rows = await services.database.fetch(
        "SELECT name, registrable FROM site_domains WHERE site_id = $1 ORDER BY name <> $2, name LIMIT $3",
        site.id,
        site.domain,
        MOST_NAMES,
    )
    # Nobody sends mail as www.example.com: programs that derive their domain from the site's address drop the www.
    domains: dict[str, str] = {}
    for row in rows:
        name, zone = row["name"], row["registrable"]
        domains.setdefault(name if name == zone else name.removeprefix("www."), zone)
    zones = {zone: await _zone(services.database, site, zone) for zone in dict.fromkeys(domains.values())}
    world = _World(services)
    await world.look_at_delegations(zones)
    elsewhere = [zone for zone in zones.values() if zone.records is None or world.asks_here(zone.name) is False]
    names = [zone.key.record for zone in elsewhere if zone.key is not None]
    away = {zone.name for zone in elsewhere}
    await world.look_at_texts({*names, *(domain for domain, zone in domains.items() if zone in away)})
    return [
        MailDomain(
            name=domain,
            zone=zone,
            dkim=_dkim(world, zones[zone]),
            spf=spf_of(domain, world.texts(domain) if zone in away else zones[zone].texts(domain), spf),
        )
        for domain, zone in domains.items()
    ]


async def _zone(database: Database, site: SiteRow, name: str) -> _Zone:
    row = await read_zone(database, name)
    if row is None or row.owner_id != site.owner_id:
        return _Zone(name, None, None)
    return _Zone(name, await read_key(database, name), await read_records(database, name))


def _dkim(world: _World, zone: _Zone) -> MailDkim:
    if zone.records is None:
        advice = f"The DNS of {zone.name} is not on this server, so mail from it is not signed here."
        return MailDkim(state=DkimState.ELSEWHERE, record=None, text=None, advice=advice)
    if zone.key is None:
        advice = "The key is made with the first mail; the following ones are signed."
        return MailDkim(state=DkimState.WAITING, record=None, text=None, advice=advice)
    record, text = zone.key.record, zone.key.text
    here = world.asks_here(zone.name)
    if here:
        return MailDkim(state=DkimState.SIGNED, record=record, text=text, advice=None)
    if here is None:
        advice = f"It could not be found out whether {zone.name} is delegated to this server, which has the record."
        return MailDkim(state=DkimState.UNKNOWN, record=record, text=text, advice=advice)
    texts = world.texts(record)
    if texts is None:
        advice = f"The DNS could not be asked about {record}."
        return MailDkim(state=DkimState.UNKNOWN, record=record, text=text, advice=advice)
    if any(_without_space(each) == _without_space(text) for each in texts):
        return MailDkim(state=DkimState.SIGNED, record=record, text=text, advice=None)
    advice = f"{zone.name} is delegated to other servers: add this TXT record there."
    return MailDkim(state=DkimState.MISSING, record=record, text=text, advice=advice)


def expected_spf(services: Panel, settings: PanelSettings) -> str | None:
    """The SPF mechanisms that allow the relay to send: those in the server's settings, or the addresses of this server
    if the relay is on it; None if neither is known."""
    if settings.site_mail_spf:
        return settings.site_mail_spf
    mail = services.config.mail
    if mail is None or mail.host not in _LOOPBACK:
        return None
    return " ".join(f"ip{address.version}:{address}" for address in services.config.dns.site_addresses()) or None


def spf_of(domain: str, texts: Sequence[str] | None, expected: str | None) -> MailSpf:
    """`texts` are the TXT records of the domain; None if they are not known."""
    if texts is None:
        advice = f"The DNS could not be asked about {domain}."
        return MailSpf(state=SpfState.UNKNOWN, found=None, text=None, advice=advice)
    found = [text for text in texts if text.split(" ", 1)[0].lower() == "v=spf1"]
    if len(found) > 1:
        advice = f"{domain} has {len(found)} SPF records, which receivers take for an error: make one of them."
        return MailSpf(state=SpfState.MISSING, found=found[0], text=None, advice=advice)
    record = found[0] if found else None
    if expected is None:
        advice = "What the relay needs is not known: an administrator sets it, as the relay's provider says."
        return MailSpf(state=SpfState.UNKNOWN, found=record, text=None, advice=advice)
    words = (record or "v=spf1 ~all").split()
    missing = [word for word in expected.split() if word.lower() not in {each.lower().lstrip("+") for each in words}]
    if record is not None and not missing:
        return MailSpf(state=SpfState.OK, found=record, text=record, advice=None)
    end = next((at for at, word in enumerate(words) if _END.fullmatch(word)), len(words))
    text = " ".join([*words[:end], *missing, *words[end:]])
    change = f"Change the SPF record of {domain}" if record else f"Add a TXT record to {domain}"
    advice = f"{change}: receivers may refuse its mail from this server's relay until then."
    return MailSpf(state=SpfState.MISSING, found=record, text=text, advice=advice)


def _without_space(text: str) -> str:
    return "".join(text.split())
