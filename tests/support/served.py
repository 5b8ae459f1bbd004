"""A web server that serves whatever it is told, for tests of those who tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from svc_webhost.nginx import NginxError, SiteServer
from tests.support.changes import Changes


@dataclass
class RecordedServing:
    """`sites` are served now. `refuses` says why a site is not taken, `down` why nothing is. `told` changes with each
    order."""

    sites: dict[int, SiteServer] = field(default_factory=dict)
    refuses: dict[int, str] = field(default_factory=dict)
    down: str | None = None
    rotations: int = 0
    looks: int = 0
    applied: list[dict[int, SiteServer | None]] = field(default_factory=list)
    told: Changes = field(default_factory=Changes)

    async def start(self, sites: Iterable[SiteServer]) -> dict[int, str]:
        if self.down is not None:
            raise NginxError(self.down)
        wanted = {site.number: site for site in sites}
        self.sites = {number: site for number, site in wanted.items() if number not in self.refuses}
        self.told.tell()
        return {number: words for number, words in self.refuses.items() if number in wanted}

    async def apply(self, changes: Mapping[int, SiteServer | None]) -> dict[int, str]:
        if changes:
            self.applied.append(dict(changes))
        else:
            self.looks += 1
        self.told.tell()
        if self.down is not None:
            raise NginxError(self.down)
        for number, site in changes.items():
            if site is None:
                self.sites.pop(number, None)
            elif number not in self.refuses:
                self.sites[number] = site
        return dict(self.refuses)

    async def difference(self, site: SiteServer) -> str | None:
        return None if self.sites.get(site.number) == site else "It serves the site otherwise."

    async def rotate_logs(self) -> int:
        self.rotations += 1
        self.told.tell()
        return 0
