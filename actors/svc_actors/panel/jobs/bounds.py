"""Limits how many jobs may wait for one site and for one customer, for jobs that customers may order at will.

The queues are fair, so one tenant's jobs do not delay those of others (`queue`). But each job is a row with steps and a
log, and every waiting job delays those behind it. Deletions and the panel's own jobs have no limit.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.store import Transaction
from svc_common.errors import rate_limited

MOST_WAITING_OF_SITE: Final = 10
MOST_WAITING_OF_CUSTOMER: Final = 30


async def require_turn(tx: Transaction, site_id: UUID, owner_id: UUID) -> None:
    """Raises `rate_limited` if the site or the customer has too many waiting jobs. An advisory lock, held until the
    transaction ends, makes concurrent orders count each other."""
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
