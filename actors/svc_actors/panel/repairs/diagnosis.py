"""All parts of a site looked at side by side, within the time that whoever asks may wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import trio

from svc_actors.errors import ServiceError, conflict
from svc_actors.panel.repairs.parts import Finding, Part, Parts, Repair
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus

LOOK_SECONDS: Final = 1.6
"""An answer takes two at the most, its way through the service included."""
_MOST_FINDINGS: Final = 20
_LOOKED_AT: Final = (SiteStatus.ACTIVE, SiteStatus.SUSPENDED)


class CheckState(StrEnum):
    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    """It could not be looked at, or not in time."""


@dataclass(frozen=True)
class Checked:
    repair: Repair
    state: CheckState
    findings: tuple[Finding, ...]


class Diagnosis:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def of(self, site: SiteRow) -> list[Checked]:
        """Every part, in the order of `Repair`. Raises conflict for a site that is not finished, or goes."""
        require_finished(site)
        found: dict[Repair, Checked] = {}

        async def look(repair: Repair, part: Part) -> None:
            found[repair] = await checked(repair, part, site, LOOK_SECONDS)

        async with trio.open_nursery() as nursery:
            for repair, part in self._parts.items():
                nursery.start_soon(look, repair, part)
        return [found[repair] for repair in Repair]


async def checked(repair: Repair, part: Part, site: SiteRow, seconds: float) -> Checked:
    """One part, looked at for so long at the most."""
    with trio.move_on_after(seconds):
        try:
            findings = await part.look(site)
        except ServiceError as error:
            return Checked(repair, CheckState.UNKNOWN, (Finding(error.message, mendable=False),))
        state = CheckState.FAULTY if findings else CheckState.HEALTHY
        return Checked(repair, state, tuple(_shortened(findings)))
    late = Finding(f"It could not be looked at within {seconds:g} seconds.", mendable=False)
    return Checked(repair, CheckState.UNKNOWN, (late,))


def require_finished(site: SiteRow) -> None:
    if site.status not in _LOOKED_AT:
        raise conflict(f"The site {site.domain} is {site.status.value}; there is nothing to compare it with yet.")


def _shortened(findings: list[Finding]) -> list[Finding]:
    """With what is left out in one more."""
    if len(findings) <= _MOST_FINDINGS:
        return findings
    left = findings[_MOST_FINDINGS:]
    return [
        *findings[:_MOST_FINDINGS],
        Finding(f"{len(left):,} more of the kind.", mendable=any(each.mendable for each in left)),
    ]
