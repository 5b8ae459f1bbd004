"""Which site uses most of what all share: a server that is slow is mended by whoever knows who makes it so.

It changes no status: a site within its limits may use them. `load` and `memory` say it in their message, also while
they are well, since a visitor of another site may notice before the server is short of anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import trio

from svc_actors.host.site_use import SiteUse
from svc_actors.host.vitals import Vitals
from svc_actors.store import Database

_NOTABLE_SHARE: Final = 0.25
"""Of one processor, between two looks."""
_NOTABLE_BYTES: Final = 256 << 20


@dataclass
class Busiest:
    """Compares what sites had used at its last look with what they have used now."""

    database: Database
    vitals: Vitals
    _before: Mapping[int, SiteUse] = field(default_factory=dict)
    _at: float | None = None

    async def of_processor(self) -> str:
        """Nothing at the first look, and where no site is notable."""
        since, before, now = await self._look()
        if since is None:
            return ""
        shares = {
            number: (use.processor_seconds - _seconds(before.get(number))) / since
            for number, use in now.items()
            if use.processor_seconds is not None
        }
        number = max(shares, key=lambda each: shares[each], default=None)
        if number is None or shares[number] < _NOTABLE_SHARE:
            return ""
        return f" {await self._name(number)} uses {100 * shares[number]:.0f} % of one processor."

    async def of_memory(self) -> str:
        """Sites whose programs were ended at their limit come first: they want more than they have."""
        _, before, now = await self._look()
        ended = sorted(
            number
            for number, use in now.items()
            if number in before and (use.killed or 0) > (before[number].killed or 0)
        )
        if ended:
            names = ", ".join([await self._name(number) for number in ended[:3]])
            return f" Programs were ended at the memory limit of {names}."
        number = max(now, key=lambda each: now[each].memory_bytes or 0, default=None)
        size = 0 if number is None else now[number].memory_bytes or 0
        if number is None or size < _NOTABLE_BYTES:
            return ""
        return f" {await self._name(number)} uses {size / 2**30:.1f} GiB."

    async def _look(self) -> tuple[float | None, Mapping[int, SiteUse], Mapping[int, SiteUse]]:
        """Seconds since the look before, None for the first; what was used then, and now."""
        now = await trio.to_thread.run_sync(self.vitals.sites)
        at, before = self._at, self._before
        self._at, self._before = trio.current_time(), now
        return None if at is None else max(self._at - at, 0.001), before, now

    async def _name(self, number: int) -> str:
        domain = await self.database.fetchval("SELECT domain FROM sites WHERE number = $1", number)
        return f"s{number}" if domain is None else str(domain)


def _seconds(use: SiteUse | None) -> float:
    return 0.0 if use is None else use.processor_seconds or 0.0
