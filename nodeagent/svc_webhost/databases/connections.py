"""How many connections to an engine a user, a site and a customer may have at a time.

Both engines limit users alone. So each user gets a share of its site's limit and of its customer's, and a customer has
at most as many users as connections: the sum over a customer's users never exceeds the customer's limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from svc_webhost.databases.server import EngineKind


@dataclass(frozen=True)
class Connections:
    site: int
    customer: int
    """The connections of one customer; also the most users that a customer may have in the engine."""
    server: int
    """The connections of the server: if two customers use up their limits, some are left for others, and for the
    panel."""

    def of_user(self, *, of_site: int, of_customer: int) -> int:
        """How many connections each user may have, given how many users its site and its customer have in the
        engine."""
        return max(1, min(self.site // of_site, self.customer // of_customer))

    def is_shared(self, of_customer: int) -> bool:
        """Whether a user gets fewer connections than the only user of a site, because its customer has so many
        users."""
        return of_customer * self.site > self.customer


CONNECTIONS: Final[Mapping[EngineKind, Connections]] = {
    # In MariaDB a connection is a thread; while it waits it takes some 200 KB.
    EngineKind.MARIADB: Connections(site=30, customer=1000, server=2100),
    # In PostgreSQL a connection is a process of some 5 MB.
    EngineKind.POSTGRESQL: Connections(site=20, customer=400, server=850),
}
