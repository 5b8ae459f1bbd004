"""How many connections of an engine a user, a site and a customer have at a time.

Both engines count by user alone. So each user has its part of what its site has and of what its customer has, and a
customer has no more users than connections: the sum of a customer's users never passes the customer's share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from svc_actors.host.databases.server import EngineKind


@dataclass(frozen=True)
class Connections:
    site: int
    customer: int
    """Also the most users that a customer has in the engine."""
    server: int
    """Two customers with all of theirs leave some to the others, and to the panel."""

    def of_user(self, *, of_site: int, of_customer: int) -> int:
        """Of each of so many users, where its customer has so many in the engine."""
        return max(1, min(self.site // of_site, self.customer // of_customer))

    def is_shared(self, of_customer: int) -> bool:
        """Whether a customer with so many users has less for each than a site of one user has."""
        return of_customer * self.site > self.customer


CONNECTIONS: Final[Mapping[EngineKind, Connections]] = {
    # A thread that waits takes some 200 KB.
    EngineKind.MARIADB: Connections(site=30, customer=1000, server=2100),
    # Each is a process, of some 5 MB.
    EngineKind.POSTGRESQL: Connections(site=20, customer=400, server=850),
}
