"""Compare a host with the records after a restore: find what only the host has, and what only the records have.

Theory of operation. A backup is older than the hosts. So a restored controller starts with every machine unconfirmed,
and every node unheard. A node that connects is inventoried and asked for its networks as always; its answers are
compared here. A machine that its host has, with exactly the recorded addresses, is confirmed, and from then on it is
treated like any other. An operator decides about the rest:

    unknown    the host has a machine without a record: created since, or its record was removed
    missing    there is a record, and the host has no such machine: deleted since, or lost
    differing  the host has the machine, and carries other addresses for it

Invariants: an unconfirmed machine is not started, defined, applied or released automatically; an unknown one never is,
on a restored controller or not; its addresses are given to no machine (`networking.carried`).

Rejected: acting on the records at once. A restored controller would give addresses of machines that it does not know to
others, build deleted machines again, and carry out yesterday's orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.controller.machines.records import ISOLATED
from svc_actors.controller.machines.spec import held_network
from svc_actors.controller.networking.carried import MOST_CARRIED, note_carried
from svc_actors.controller.networking.pool_arithmetic import IPNetwork
from svc_actors.store import Record, Transaction
from svc_nodeagent.protocol import ObservedNetwork


class OrphanKind(StrEnum):
    UNKNOWN = "unknown"
    MISSING = "missing"
    DIFFERING = "differing"


_UNKNOWN: Final = """
SELECT found.node_id, found.vm_id, 'unknown' AS kind, max(found.name) AS name, max(found.state) AS state,
       max(found.vcpus) AS vcpus, max(found.memory_mib) AS memory_mib, NULL::uuid AS project_id
FROM (
    SELECT node_id, vm_id, name, state, vcpus, memory_mib FROM observed_domains WHERE vm_id IS NOT NULL
    UNION ALL SELECT node_id, vm_id, NULL, NULL, NULL, NULL FROM carried_addresses
) found WHERE NOT EXISTS (SELECT FROM vms WHERE vms.id = found.vm_id) GROUP BY found.node_id, found.vm_id"""

# Nodes that have not been heard since the restore are left out: until then it is unknown whether a machine is missing
# on its host.
_UNCONFIRMED: Final = """
SELECT vms.node_id, vms.id AS vm_id, CASE WHEN seen.uuid IS NULL THEN 'missing' ELSE 'differing' END AS kind, vms.name,
       seen.state, vms.vcpus, vms.memory_mib, vms.project_id
FROM vms JOIN nodes ON nodes.id = vms.node_id AND NOT nodes.unheard
LEFT JOIN observed_domains seen ON seen.node_id = vms.node_id AND seen.vm_id = vms.id
WHERE vms.unconfirmed AND vms.deleted_at IS NULL AND vms.status <> 'deleting'"""

ORPHANS: Final = f"{_UNKNOWN} UNION ALL {_UNCONFIRMED}"
"""The machines about which an operator has to decide, one row each."""

_RECORDED: Final = f"""
SELECT vms.id, vms.deleted_at IS NULL AND vms.node_id = $1 AS here, vms.unconfirmed, {ISOLATED} AS isolated,
       vms.built_at IS NOT NULL AS built,
       EXISTS (SELECT FROM observed_domains seen WHERE seen.node_id = $1 AND seen.vm_id = vms.id) AS domain,
       array(SELECT ip FROM allocations WHERE vm_id = vms.id AND state = 'allocated') AS held,
       array(SELECT ip FROM allocations WHERE vm_id = vms.id AND state = 'releasing') AS releasing
FROM vms WHERE vms.id = ANY($2::uuid[]) OR vms.node_id = $1 AND vms.unconfirmed AND vms.deleted_at IS NULL"""


RESTORED_ALERT: Final = "controller-restored"
_MOST_NAMED: Final = 5


def orphans_alert(node_id: UUID) -> str:
    return f"orphans:{node_id}"


def carried_alert(node_id: UUID) -> str:
    """The key of the alert about a node that claims to carry more addresses than are accepted from it."""
    return f"carried:{node_id}"


async def compare_with_records(tx: Transaction, *, node_id: UUID, networks: Sequence[ObservedNetwork]) -> None:
    """Compare this node's host, as just probed, with the records; the inventory is recorded already. Confirm machines
    that agree, record addresses that are carried without a record, and raise alerts."""
    # The node's row is locked before the rows of machines and pools: locks are taken in the order node, machine, pool.
    await tx.execute("UPDATE nodes SET unheard = false WHERE id = $1 AND unheard", node_id)
    observed = {network.vm_id: network for network in networks}
    recorded = {row["id"]: row for row in await tx.fetch(_RECORDED, node_id, list(observed))}
    carried: dict[UUID, Sequence[str]] = {
        vm_id: network.addresses for vm_id, network in observed.items() if vm_id not in recorded and network.addresses
    }
    confirmed = []
    for vm_id, row in recorded.items():
        if not (row["here"] and row["unconfirmed"]):
            continue
        network = observed.get(vm_id)
        # A machine that carries an address which its record does not have is not confirmed: that is worse than a
        # missing address, because another machine may have the address in the records.
        extra = _unrecorded(row, network)
        if extra:
            carried[vm_id] = extra
        elif _agrees(row, network):
            confirmed.append(vm_id)
    if confirmed:
        await confirm(tx, confirmed)
    # As long as an operator has not decided about the restore, a node may honestly carry most of a pool without a
    # record.
    restoring = await tx.fetchval(
        "SELECT EXISTS (SELECT FROM alerts WHERE key = $1 AND closed_at IS NULL)", RESTORED_ALERT
    )
    left_out = await note_carried(tx, node_id, carried, of_a_pool_all=restoring)
    await _tell_of_left_out(tx, node_id, carried, left_out)
    await tell_of_orphans(tx, node_id)


async def _tell_of_left_out(
    tx: Transaction, node_id: UUID, carried: Mapping[UUID, Sequence[str]], left_out: int
) -> None:
    if not left_out:
        await close_alert(tx, carried_alert(node_id))
        return
    node = await tx.fetchval("SELECT name FROM nodes WHERE id = $1", node_id)
    number = sum(map(len, carried.values()))
    await raise_alert(
        tx,
        carried_alert(node_id),
        f"Node {node} reports that its host carries {number} addresses for {len(carried)} machines that have no "
        f"record there; {left_out} of them are not reserved and may be assigned to other machines. At most "
        f"{MOST_CARRIED} are reserved, and a quarter of a pool. Check the host, and reserve the addresses if they "
        "are in use.",
        severity=Severity.CRITICAL,
        resource_kind="node",
        resource_id=node_id,
    )


async def confirm(tx: Transaction, vm_ids: Sequence[UUID]) -> None:
    """Make these machines normal ones again: their hosts have them as recorded, or an operator says that the records
    are right."""
    await tx.execute(
        """WITH confirmed AS MATERIALIZED (
               SELECT id FROM vms WHERE id = ANY($1::uuid[]) AND unconfirmed ORDER BY id FOR NO KEY UPDATE
           )
           UPDATE vms SET unconfirmed = false FROM confirmed WHERE vms.id = confirmed.id""",
        vm_ids,
    )


async def stop_awaiting_report(tx: Transaction, node_id: UUID) -> bool:
    """An operator says that this node will not come back: stop waiting for its report. Returns whether it was
    awaited."""
    return bool(await tx.change("UPDATE nodes SET unheard = false WHERE id = $1 AND unheard", node_id))


async def tell_of_orphans(tx: Transaction, node_id: UUID) -> None:
    """Open or close the alert about the decisions that a restore has left for this node. Machines without a record have
    alerts of their own, from the machine watch. When no decision is left on any node, the restore is over."""
    rows = await tx.fetch(f"SELECT name, kind FROM ({_UNCONFIRMED}) found WHERE node_id = $1 ORDER BY name", node_id)
    if rows:
        node = await tx.fetchval("SELECT name FROM nodes WHERE id = $1", node_id)
        named = ", ".join(f"{row['name']} ({row['kind']})" for row in rows[:_MOST_NAMED])
        more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
        await raise_alert(
            tx,
            orphans_alert(node_id),
            f"Since the restore machines of node {node} are not as recorded: {named}{more}. See `svc node orphans`.",
            severity=Severity.CRITICAL,
            resource_kind="node",
            resource_id=node_id,
        )
        return
    await close_alert(tx, orphans_alert(node_id))
    if not await tx.fetchval(
        """SELECT EXISTS (SELECT FROM nodes WHERE unheard AND deleted_at IS NULL)
               OR EXISTS (SELECT FROM vms WHERE unconfirmed AND deleted_at IS NULL)"""
    ):
        await close_alert(tx, RESTORED_ALERT)


def _unrecorded(row: Record, network: ObservedNetwork | None) -> list[str]:
    known = _networks(row["held"]) | _networks(row["releasing"])
    return [] if network is None else [each for each in network.addresses if held_network(each) not in known]


def _agrees(row: Record, network: ObservedNetwork | None) -> bool:
    """Whether the host has everything that is recorded. A machine that was never built agrees if it is not on the
    host."""
    if not row["built"]:
        return not row["domain"] and network is None
    if not row["domain"] or network is None:
        return False
    # An isolated machine must carry no address, so missing ones do not count. If only one of record and host has it
    # isolated, the network watch settles which is right.
    carried = _networks(network.addresses)
    return row["isolated"] or network.isolated or _networks(row["held"]) <= carried


def _networks(addresses: Sequence[object]) -> set[IPNetwork]:
    return {held_network(each) for each in addresses}
