"""A site taken apart as it is repaired: six parts, each of which is compared with its records and made as they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from svc_actors.panel.sites.records import SiteRow


class Repair(StrEnum):
    """All that there are; none takes an argument."""

    PERMISSIONS = "permissions"
    CONFIGURATION = "configuration"
    RUNTIME = "runtime"
    CERTIFICATE = "certificate"
    DNS = "dns"
    DATABASE = "database"


@dataclass(frozen=True)
class Finding:
    """`evidence` is a sentence of what was seen. `mendable`: the repair of the part helps; else a person has to.
    `count`: of how many things it tells."""

    evidence: str
    mendable: bool = True
    count: int = 1


class Part(Protocol):
    """Both raise `ServiceError` where they could not do it."""

    async def look(self, site: SiteRow) -> list[Finding]:
        """What is not as the records say. Changes nothing."""
        ...

    async def mend(self, site: SiteRow) -> None:
        """Make it as the records say. May be repeated."""
        ...


Parts = Mapping[Repair, Part]
