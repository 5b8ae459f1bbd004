"""Alerts about domains without a record, and about pools that run low.

Invariant: a domain of ours without a record causes an alert and is left alone: no disk is destroyed because of a guess.

Rejected: an alert for each domain. A host that joined with its guests, or a hostile host, caused thousands of alerts,
among which the critical ones were lost.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_actors.alerts import close_alerts, raise_alert
from svc_actors.controller.networking.pool_watch import watch_pools
from svc_actors.store import Database, LoopAlert, Record, Transaction, keep_repeating

_ORPHAN: Final = "orphan:"
_MOST_NAMED: Final = 5
_MOST_OF_A_NAME: Final = 64
"""Characters of a name that an alert shows: a host may give a domain a name of any length."""


class MachineWatch:
    """One per process; `run` runs in the composer's nursery."""

    def __init__(self, database: Database, *, interval: float = 30.0, alert: LoopAlert | None = None) -> None:
        self._database = database
        self._interval = interval
        self._alert = alert

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await keep_repeating("machine watch", self._interval, self._look, self._alert)

    async def _look(self) -> None:
        await self.point_out_orphans()
        await watch_pools(self._database)

    async def point_out_orphans(self) -> None:
        """Raise one alert for each managed node that has domains of ours whose machines are not recorded on this
        node."""

        # Two kinds of domains are not orphans: those on either node of a move, and those of a machine that was deleted
        # after its domain was seen, which the next inventory will no longer list.
        async def work(tx: Transaction) -> None:
            nodes = await tx.fetch(
                """SELECT seen.node_id, nodes.name AS node, count(*) AS number,
                          (array_agg(left(seen.name, $1) ORDER BY seen.name))[:$2] AS first
                   FROM observed_domains seen
                   JOIN nodes ON nodes.id = seen.node_id AND nodes.mode = 'managed' AND nodes.deleted_at IS NULL
                   WHERE seen.vm_id IS NOT NULL AND seen.state <> 'absent' AND NOT EXISTS (
                       SELECT FROM vms WHERE vms.id = seen.vm_id
                                         AND seen.node_id IN (vms.node_id, vms.moving_to, vms.moved_from)
                                         AND (vms.deleted_at IS NULL OR vms.deleted_at > seen.seen_at))
                   GROUP BY seen.node_id, nodes.name ORDER BY seen.node_id""",
                _MOST_OF_A_NAME,
                _MOST_NAMED,
            )
            keys = []
            for row in nodes:
                keys.append(f"{_ORPHAN}{row['node_id']}")
                await raise_alert(tx, keys[-1], _orphans_message(row), resource_kind="node", resource_id=row["node_id"])
            await close_alerts(tx, _ORPHAN, keep=keys)

        await self._database.transact(work)


def _orphans_message(row: Record) -> str:
    number, first = row["number"], ", ".join(row["first"])
    more = f" and {number - len(row['first'])} more" if number > len(row["first"]) else ""
    what = "the domain of a machine that is" if number == 1 else f"{number} domains of machines that are"
    return (
        f"Node {row['node']} has {what} not recorded there: {first}{more}. Decide about them on the page of the node,"
        " or by `svc node orphans`."
    )
