"""Where the names of a site lead, and what leads visitors to this server, as the answers about sites say it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.registry.operation import Model
from svc_actors.panel.dns.pointing import PointsTo, advice, points_to, public
from svc_actors.panel.dns.settings import UNNAMED

ASTRAY = frozenset({PointsTo.NOWHERE, PointsTo.PARTLY, PointsTo.ELSEWHERE})


class NamePoints(Model):
    """Where a name leads. `text` continues the name: "points here", "points to 203.0.113.5 (elsewhere)", "does not
    resolve". `addresses` are those that resolvers found; `checked_at` is null if they were not asked yet."""

    state: PointsTo
    text: str
    addresses: list[str]
    checked_at: datetime | None


class NamedPoints(NamePoints):
    name: str


class SitePointing(Model):
    """`addresses`: of this server, for the A and AAAA records of each name; none if they are not known. `nameservers`:
    those of zones on this server. `zones`: the zones of these names that are on this server. `advice`: what to do about
    the names that do not lead here."""

    addresses: list[str]
    nameservers: list[str]
    zones: Annotated[list[str], Field(description="Zones of the site's names that are on this server.")]
    names: list[NamedPoints]
    advice: str | None


async def names_point(services: Panel, owner_id: UUID, names: Sequence[str]) -> list[NamedPoints]:
    """Where these names of the owner's sites lead, as far as that is known soon."""
    own = services.config.dns.site_addresses()
    answers = await services.public_names.answers(owner_id, names)
    found = []
    for name in names:
        answer = answers[name]
        state, text = points_to(name, answer, own)
        addresses = public(answer.addresses or (), own) if answer is not None else []
        checked_at = answer.at if answer is not None else None
        found.append(NamedPoints(name=name, state=state, text=text, addresses=addresses, checked_at=checked_at))
    return found


async def site_pointing(services: Panel, site_id: UUID, owner_id: UUID, zone: str | None = None) -> SitePointing:
    """Of all names of the site, its domain first, or of those in one zone."""
    rows = await services.database.fetch(
        """SELECT named.name, named.registrable,
                  EXISTS (SELECT FROM dns_zones WHERE name = named.registrable AND owner_id = $2) AS hosted
           FROM site_domains AS named JOIN sites ON sites.id = named.site_id
           WHERE sites.id = $1 AND ($3::text IS NULL OR named.registrable = $3)
           ORDER BY named.name <> sites.domain, named.name""",
        site_id,
        owner_id,
        zone,
    )
    names = await names_point(services, owner_id, [row["name"] for row in rows])
    astray: dict[str, list[str]] = {}
    for row, points in zip(rows, names, strict=True):
        if points.state in ASTRAY:
            astray.setdefault(row["registrable"], []).append(points.name)
    own = services.config.dns.site_addresses()
    hosted = frozenset(row["registrable"] for row in rows if row["hosted"])
    nameservers = [name for name in services.authority.nameservers if name != UNNAMED]
    return SitePointing(
        addresses=[str(address) for address in own],
        nameservers=nameservers,
        zones=sorted(hosted),
        names=names,
        advice=advice(astray, own, hosted, nameservers),
    )
