"""Counts of the fleet for /metrics, read from the database at each scrape. Most come from the counts that are
maintained for lists."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from svc.controller.machines.models import shown_status
from svc_actors.controller.networking.pool_watch import POOLS, PoolCounts
from svc_actors.controller.nodes.records import SHOWN_STATE
from svc_actors.store import Database
from svc_common.errors import ServiceError

DEADLINE: Final = 3.0
"""Seconds for a census. Prometheus allows ten for a scrape, and has to get the process's own metrics even while the
database hangs."""

Numbers = Mapping[tuple[str, ...], float]


@dataclass(frozen=True)
class Census:
    nodes: Numbers = field(default_factory=dict)
    """Nodes by state."""
    machines: Numbers = field(default_factory=dict)
    """Machines by status."""
    tasks: Numbers = field(default_factory=dict)
    """The open tasks, by operation and status."""
    task_ages: Numbers = field(default_factory=dict)
    """The age of the oldest open task of an operation, in seconds."""
    alerts: Numbers = field(default_factory=dict)
    """The open alerts, by severity."""
    mails: Numbers = field(default_factory=dict)
    """The waiting mails, by kind."""
    mail_ages: Numbers = field(default_factory=dict)
    """The age of the oldest waiting mail of a kind, in seconds."""
    pool_sizes: Numbers = field(default_factory=dict)
    """Addresses (of IPv6, sub-prefixes) by network and pool, of enabled pools only."""
    pool_free: Numbers = field(default_factory=dict)


class CensusTaker:
    """Takes a census at each scrape and keeps the last one. If the database does not answer, the census is empty and
    `database_up` is false."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.census = Census()
        self.database_up = True

    async def take(self) -> None:
        taken: Census | None = None
        with trio.move_on_after(DEADLINE), suppress(ServiceError):
            taken = await _take(self._database)
        self.database_up = taken is not None
        self.census = taken or Census()


async def _take(database: Database) -> Census:
    tasks = await database.fetch(
        """SELECT op, status, count(*)::float8 AS number, extract(epoch FROM now() - min(created_at))::float8 AS age
           FROM tasks WHERE status IN ('queued', 'running') GROUP BY op, status"""
    )
    pools = {
        (row["network_name"], row["name"]): PoolCounts.of(row) for row in await database.fetch(POOLS) if row["enabled"]
    }
    ages: dict[tuple[str, ...], float] = {}
    for row in tasks:
        ages[(row["op"],)] = max(ages.get((row["op"],), 0.0), row["age"])
    mails = await database.fetch(
        """SELECT kind, count(*)::float8 AS number, extract(epoch FROM now() - min(created_at))::float8 AS age
           FROM mails WHERE state = 'queued' GROUP BY kind"""
    )
    return Census(
        nodes=await _numbers(
            database, f"SELECT {SHOWN_STATE} AS word, count(*) AS number FROM nodes WHERE deleted_at IS NULL GROUP BY 1"
        ),
        machines=await _numbers(
            database,
            f"""SELECT {shown_status("words[1]")} AS word, sum(number) AS number
                FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
                WHERE list = 'vms by node' GROUP BY 1 HAVING sum(number) > 0""",
        ),
        tasks={(row["op"], row["status"]): row["number"] for row in tasks},
        task_ages=ages,
        alerts={("warning",): 0.0, ("critical",): 0.0}
        | await _numbers(
            database, "SELECT severity AS word, count(*) AS number FROM alerts WHERE closed_at IS NULL GROUP BY 1"
        ),
        mails={(row["kind"],): row["number"] for row in mails},
        mail_ages={(row["kind"],): row["age"] for row in mails},
        pool_sizes={names: float(counts.total) for names, counts in pools.items()},
        pool_free={names: float(counts.free) for names, counts in pools.items()},
    )


async def _numbers(database: Database, sql: str) -> dict[tuple[str, ...], float]:
    return {(row["word"],): float(row["number"]) for row in await database.fetch(sql)}
