"""Watches how full pools are, and raises an alert before one is exhausted: `pool-low:<pool>`.

Invariant: the alert opens when 90 % of the range are in use, is critical while nothing is free, and closes below 85 %.
In between it stays as it is, so that a single machine does not make it flap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.controller.networking.pool_records import pool_low_alert
from svc_actors.store import Database, Record, Transaction

OPENS_AT: Final = 0.90
CLOSES_BELOW: Final = 0.85

POOLS_FROM: Final = """pools
JOIN networks ON networks.id = pools.network_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(number) FILTER (WHERE state = 'reserved'), 0)::bigint AS reserved,
           coalesce(sum(number) FILTER (WHERE state = 'allocated'), 0)::bigint AS allocated,
           coalesce(sum(number) FILTER (WHERE state = 'releasing'), 0)::bigint AS releasing,
           coalesce(sum(number) FILTER (WHERE state = 'blocked'), 0)::bigint AS blocked,
           coalesce(sum(number), 0)::bigint AS in_range
    FROM (
        SELECT words[1] AS state, number FROM list_numbers WHERE list = 'addresses by pool' AND scope = pools.id
        UNION ALL
        SELECT state, -1 FROM allocations WHERE pool_id = pools.id AND slot < pools.first_slot
        UNION ALL
        SELECT state, -1 FROM allocations WHERE pool_id = pools.id AND slot > pools.last_slot
    ) numbers
) held"""
"""Triggers maintain the counts of a pool; only the few addresses outside its range are counted here."""

POOLS: Final = f"""
SELECT pools.*, networks.name AS network_name, pools.last_slot - pools.first_slot + 1 AS total,
       held.reserved AS reserved_count, held.allocated AS allocated_count, held.releasing AS releasing_count,
       held.blocked AS blocked_count, held.in_range
FROM {POOLS_FROM}"""
"""Pools with the held addresses of their range, by state and in total (`in_range`): the held and the free ones add up
to the pool's total. Arithmetic reservations outside the range are not included."""


@dataclass(frozen=True)
class PoolCounts:
    """The number of addresses (for IPv6, sub-prefixes) of the range, and how many are free."""

    total: int
    free: int

    @classmethod
    def of(cls, row: Record) -> PoolCounts:
        """The counts of a row of `POOLS`."""
        return cls(row["total"], row["total"] - row["in_range"])

    @property
    def pressure(self) -> float:
        return 1 - self.free / self.total


async def watch_pools(database: Database) -> None:
    """Check every pool once, and open or close its alert. Safe to repeat, from any process."""

    async def work(tx: Transaction) -> None:
        # The pools are locked in their common order, so that none is removed meanwhile: the removal closes the pool's
        # alert, which would be raised again here.
        for row in await tx.fetch(f"{POOLS} ORDER BY pools.family, pools.created_at, pools.id FOR KEY SHARE OF pools"):
            counts = PoolCounts.of(row)
            key = pool_low_alert(row["id"])
            if row["enabled"] and counts.pressure >= OPENS_AT:
                what = "addresses" if row["family"] == 4 else "sub-prefixes"
                few = f"runs low: {counts.free:,} of {counts.total:,} {what} are free"
                state = few if counts.free else f"is full: none of {counts.total:,} {what} is free"
                await raise_alert(
                    tx,
                    key,
                    f"The pool {row['name']} of the network {row['network_name']} {state}.",
                    severity=Severity.WARNING if counts.free else Severity.CRITICAL,
                    resource_kind="pool",
                    resource_id=row["id"],
                )
            elif not row["enabled"] or counts.pressure < CLOSES_BELOW:
                await close_alert(tx, key)

    await database.transact(work)
