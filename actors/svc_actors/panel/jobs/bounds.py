"""How many jobs may wait for one site and for one customer, of those that customers order as often as they like.

The queues are fair, so one tenant's jobs keep nobody waiting (`queue`); but each is a row with steps and a log, and its
answer comes later with each that is before it. Deletions and what the panel orders by itself are not bounded.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.errors import rate_limited
from svc_actors.store import Transaction

MOST_WAITING_OF_SITE: Final = 10
MOST_WAITING_OF_CUSTOMER: Final = 30


async def require_turn(tx: Transaction, site_id: UUID, owner_id: UUID) -> None:
    """Raises `rate_limited` where so many jobs wait already that no further one is taken. Of several that order at
    once each sees those before it: they are kept apart until the transaction ends."""
    await tx.execute("SELECT pg_advisory_xact_lock(hashtextextended('waiting jobs ' || $1, 0))", str(owner_id))
    row = await tx.fetchone(
        """SELECT count(*) FILTER (WHERE site_id = $1) AS of_site, count(*) FILTER (WHERE owner_id = $2) AS of_customer
           FROM jobs WHERE status = 'queued' AND (site_id = $1 OR owner_id = $2)""",
        site_id,
        owner_id,
    )
    for waiting, most, whose in (
        (row["of_site"], MOST_WAITING_OF_SITE, "this site"),
        (row["of_customer"], MOST_WAITING_OF_CUSTOMER, "this customer"),
    ):
        if waiting >= most:
            raise rate_limited(
                f"{waiting} jobs of {whose} are already queued; nothing was started.",
                hint=f"Wait until they have ended, or cancel some of them: at most {most} may be queued.",
            )
