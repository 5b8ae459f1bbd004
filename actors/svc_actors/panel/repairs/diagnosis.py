"""Checks all parts of a site concurrently, within the time that a caller may wait.

A check asks every program that serves the site, so repeated requests must not delay the checks of other customers: only
one site of a customer is checked at a time, and `_AT_ONCE` sites altogether. Callers that wait for the same site share
its next check. Nobody joins a check that has started, because it may show a fault that a repair has fixed since. An
operator has turns of their own, and does not wait for customers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

import trio

from svc_actors.panel.repairs.parts import Finding, Part, Parts, Repair
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus
from svc_common.errors import ServiceError, conflict, rate_limited

LOOK_SECONDS: Final = 1.6
"""Seconds for each part. Once a diagnosis has its turn, the answer takes two seconds, including its way through the
service."""
_AT_ONCE: Final = 4
_WAIT_SECONDS: Final = 10.0
"""How long a caller waits for a turn."""
_MOST_FINDINGS: Final = 20
_LOOKED_AT: Final = (SiteStatus.ACTIVE, SiteStatus.SUSPENDED)


class CheckState(StrEnum):
    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    """The part could not be checked, or not in time."""


@dataclass(frozen=True)
class CheckedPart:
    repair: Repair
    state: CheckState
    findings: tuple[Finding, ...]


@dataclass
class _Look:
    """The next check of a site, shared by all callers until it starts."""

    site: SiteRow
    """The site as the last caller has read it."""
    begun: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    found: list[CheckedPart] | None = None
    """Stays None if the caller that ran the check was cancelled or failed."""


class Diagnosis:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._next: dict[tuple[UUID, UUID | str], _Look] = {}
        """The next checks, by the site and by the owner or operator for whose turn the check waits."""
        self._turns = WeakValueDictionary[UUID | str, trio.Lock]()
        """Locks by owner or operator; each exists as long as a caller has this turn or waits for it."""
        self._all = trio.CapacityLimiter(_AT_ONCE)

    async def of(self, site: SiteRow, operator: str | None = None) -> list[CheckedPart]:
        """The state of every part, in the order of `Repair`. `operator`: the caller, if they are an operator. Raises
        conflict for a site that is being created or deleted, and rate_limited if the caller's turn does not come in
        time."""
        require_finished(site)
        until = trio.current_time() + _WAIT_SECONDS
        whose = operator or site.owner_id
        while (look := self._next.get((site.id, whose))) is not None:
            look.site = site
            with trio.move_on_at(until):
                await look.begun.wait()
            if not look.begun.is_set():
                raise _too_many(site)
            await look.over.wait()
            if look.found is not None:
                return look.found
        return await self._looked(site, whose, until)

    async def _looked(self, site: SiteRow, whose: UUID | str, until: float) -> list[CheckedPart]:
        look = self._next[site.id, whose] = _Look(site)
        turn = self._turns.setdefault(whose, trio.Lock())
        try:
            with trio.move_on_at(until) as waiting:
                async with turn, self._all:
                    waiting.deadline = inf
                    self._begin(look, whose)
                    look.found = await self._compared(look.site)
                    return look.found
            raise _too_many(site)
        finally:
            self._begin(look, whose)
            look.over.set()

    def _begin(self, look: _Look, whose: UUID | str) -> None:
        """Mark the check as started: from here on no further caller joins it."""
        if not look.begun.is_set():
            look.begun.set()
            del self._next[look.site.id, whose]

    async def _compared(self, site: SiteRow) -> list[CheckedPart]:
        found: dict[Repair, CheckedPart] = {}

        async def look(repair: Repair, part: Part) -> None:
            found[repair] = await checked(repair, part, site, LOOK_SECONDS)

        async with trio.open_nursery() as nursery:
            for repair, part in self._parts.items():
                nursery.start_soon(look, repair, part)
        return [found[repair] for repair in Repair]


async def checked(repair: Repair, part: Part, site: SiteRow, seconds: float) -> CheckedPart:
    """Check one part, for at most `seconds`."""
    with trio.move_on_after(seconds):
        try:
            findings = await part.look(site)
        except ServiceError as error:
            return CheckedPart(repair, CheckState.UNKNOWN, (Finding(error.message, mendable=False),))
        state = CheckState.FAULTY if findings else CheckState.HEALTHY
        return CheckedPart(repair, state, tuple(_shortened(findings)))
    late = Finding(f"It could not be checked within {seconds:g} seconds.", mendable=False)
    return CheckedPart(repair, CheckState.UNKNOWN, (late,))


def _too_many(site: SiteRow) -> ServiceError:
    return rate_limited(
        f"{site.domain} was not diagnosed: too many sites are being diagnosed.",
        hint="Try again once your other diagnoses have ended.",
    )


def require_finished(site: SiteRow) -> None:
    if site.status not in _LOOKED_AT:
        raise conflict(f"The site {site.domain} is {site.status.value}; there is nothing to compare it with yet.")


def _shortened(findings: list[Finding]) -> list[Finding]:
    """The first findings, and one more that counts the others."""
    if len(findings) <= _MOST_FINDINGS:
        return findings
    left = findings[_MOST_FINDINGS:]
    count = sum(each.count for each in left)
    return [
        *findings[:_MOST_FINDINGS],
        Finding(f"{count:,} more of the kind.", mendable=any(each.mendable for each in left), count=count),
    ]
