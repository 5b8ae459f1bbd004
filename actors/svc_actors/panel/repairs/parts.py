"""The six parts of a site that are checked and repaired: each is compared with its records, and made to match them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from svc_actors.panel.sites.records import SiteRow


class Repair(StrEnum):
    """All repairs; none takes an argument."""

    PERMISSIONS = "permissions"
    CONFIGURATION = "configuration"
    RUNTIME = "runtime"
    CERTIFICATE = "certificate"
    DNS = "dns"
    DATABASE = "database"


@dataclass(frozen=True)
class Finding:
    """`evidence` is a sentence about what was seen. `mendable`: the part's repair can fix it; otherwise a person has
    to. `count`: how many things it covers."""

    evidence: str
    mendable: bool = True
    count: int = 1


class Part(Protocol):
    """Both methods raise `ServiceError` on failure."""

    async def look(self, site: SiteRow) -> list[Finding]:
        """Differences from the records. Changes nothing."""
        ...

    async def mend(self, site: SiteRow) -> None:
        """Make the part match the records. May be repeated."""
        ...


Parts = Mapping[Repair, Part]
