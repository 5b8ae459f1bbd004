"""The network columns of a machine's row: what its host must apply, by generation, and what the host has reported.

Nothing else writes `net_wanted`, `net_applied`, `net_error`, `net_failed_at`, `rate_mbps`, `throttle_mbps` and
`traffic_isolated`; other modules call a function of this one, in the transaction of the change itself.

Rejected: leaving these columns to the Machine actor. One rule of a security group, or one plan, changes a thousand
machines in one transaction: here this is one statement, with actors it would be a thousand messages.

Invariants:
- rows are locked before they are changed, and several rows are locked in the order of their ids: the Machine actor, the
  network watch and a group's rules change the same row from different tasks, and from different processes if there are
  several;
- a machine's `net_wanted` grows in the same transaction as anything that `machines.spec.network_spec` reads, so a host
  that has applied an older generation is known to be behind, whatever crashed in between. The network watch brings it
  up to date, at once and again until it succeeds;
- `net_applied` is the generation that the host itself has reported, and never decreases. If a host is ahead of the
  record (which was restored from a backup, say), the record is moved beyond it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert
from svc_actors.store import Record, Transaction

CHANNEL: Final = "svc_network"
"""The PostgreSQL channel that announces commits to the network watch."""

MOST_BELIEVED: Final = 2**52
"""No generation in the records ever grows this far. A host that reports a higher one is mistaken or hostile: it is not
believed, because the record has to exceed the host's number. A record at the end of a bigint could not count any
further change."""


@dataclass(frozen=True)
class NetworkFailure:
    """`news`: the machine's record did not have this error before."""

    machine: str
    project_id: UUID
    node: str
    news: bool


async def network_changed(tx: Transaction, vm_ids: Iterable[UUID]) -> None:
    """Give these machines' networks a new generation. Their rows are locked in the order of their ids, as in every
    transaction that locks several."""
    # Each change gets a number, instead of setting a flag "dirty": the host's late answer to an older order must not
    # mark a newer change as done. MATERIALIZED makes the query lock all rows, in this order, before it changes the
    # first.
    changed = await tx.execute(
        """WITH changed AS MATERIALIZED (
               SELECT id FROM vms WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE
           )
           UPDATE vms SET net_wanted = net_wanted + 1 FROM changed WHERE vms.id = changed.id""",
        list(set(vm_ids)),
    )
    if changed != "UPDATE 0":
        await call_watch(tx)


def applied_columns(generation: str) -> str:
    """The assignments of `network_applied`, for a statement that writes more columns of the row: `generation` is the
    SQL of a bigint, and NULL changes nothing. The row must be locked, and the statement must return `HAS_APPLIED` for
    `follow_applied`."""
    return f"net_applied = greatest(vms.net_applied, {generation}), {_beside_applied(generation)}"


def _beside_applied(generation: str) -> str:
    # If the host is ahead, the desired generation becomes the one after the host's, because a host ignores older ones.
    # An error is cleared once the host has the desired generation; success with an older one says nothing about the
    # error.
    return f"""net_wanted = CASE WHEN {generation} > vms.net_wanted THEN {generation} + 1 ELSE vms.net_wanted END,
               net_error = CASE WHEN {generation} >= vms.net_wanted THEN NULL ELSE vms.net_error END,
               net_failed_at = CASE WHEN {generation} >= vms.net_wanted THEN NULL ELSE vms.net_failed_at END"""


HAS_APPLIED: Final = "vms.net_applied < vms.net_wanted AS behind, vms.net_error IS NULL AS agrees"


async def network_applied(tx: Transaction, vm_id: UUID, generation: int) -> bool:
    """Record that the machine's host reports this generation. Returns whether this is new, which the caller then
    announces. Nothing is recorded if the machine is gone or the generation is beyond `MOST_BELIEVED`."""
    if generation > MOST_BELIEVED:
        return False
    row = await tx.fetchrow(
        f"""UPDATE vms SET net_applied = greatest(vms.net_applied, $2), {_beside_applied("$2")}
           FROM (SELECT id, net_applied, net_error FROM vms WHERE id = $1 FOR NO KEY UPDATE) before
           WHERE vms.id = before.id AND vms.deleted_at IS NULL
           RETURNING vms.net_applied > before.net_applied AS advanced, {HAS_APPLIED},
                     before.net_error IS NOT NULL AS failed""",
        vm_id,
        generation,
    )
    if row is None:
        return False
    await follow_applied(tx, vm_id, row, failed=row["failed"])
    return bool(row["advanced"] or (row["failed"] and row["agrees"]))


async def follow_applied(tx: Transaction, vm_id: UUID, row: Record, *, failed: bool) -> None:
    """After a row's `applied_columns` were written: close the alert of an error that is over (`failed`: there was an
    error), and call the watch if the host is still behind."""
    if failed and row["agrees"]:
        await close_alert(tx, network_alert(vm_id))
    if row["behind"]:
        await call_watch(tx)


async def network_failed(tx: Transaction, vm_id: UUID, generation: int, message: str) -> NetworkFailure | None:
    """Record that applying this generation on the machine's host failed. Returns None if the failure is outdated: the
    machine is gone, or its host has the generation by now."""
    row = await tx.fetchrow(
        """UPDATE vms SET net_error = $3, net_failed_at = now()
           FROM (SELECT id, net_error FROM vms WHERE id = $1 FOR NO KEY UPDATE) before, nodes
           WHERE vms.id = before.id AND vms.deleted_at IS NULL AND vms.net_applied < $2 AND nodes.id = vms.node_id
           RETURNING vms.name, vms.project_id, nodes.name AS node, before.net_error IS DISTINCT FROM $3 AS news""",
        vm_id,
        generation,
        message,
    )
    return None if row is None else NetworkFailure(row["name"], row["project_id"], row["node"], row["news"])


async def cap_rate(tx: Transaction, vm_id: UUID, rate_mbps: int | None) -> int | None:
    """Cap the machine's traffic in each direction, as its operator orders; None removes the cap. Returns the previous
    cap."""
    # The row is locked before its value is compared, so that the second of two callers sees the first one's cap.
    before: int | None = await tx.fetchval("SELECT rate_mbps FROM vms WHERE id = $1 FOR NO KEY UPDATE", vm_id)
    if before != rate_mbps:
        await tx.execute("UPDATE vms SET rate_mbps = $2 WHERE id = $1", vm_id, rate_mbps)
        await network_changed(tx, [vm_id])
    return before


async def restrict_traffic(tx: Transaction, vm_id: UUID, *, throttle_mbps: int | None, isolated: bool) -> None:
    """Restrict a machine that has used up its allowance: by a cap in addition to its own, or by blocking all its
    traffic."""
    # A row that has these values already is not changed: a new generation would make the host apply the same network
    # again.
    changed = await tx.execute(
        """UPDATE vms SET throttle_mbps = $2, traffic_isolated = $3
           WHERE id = $1 AND (throttle_mbps, traffic_isolated) IS DISTINCT FROM ($2, $3)""",
        vm_id,
        throttle_mbps,
        isolated,
    )
    if changed != "UPDATE 0":
        await network_changed(tx, [vm_id])


async def call_watch(tx: Transaction) -> None:
    """Wake the network watch, once this is committed."""
    tx.announce(CHANNEL)


def network_alert(vm_id: UUID) -> str:
    """The key of the alert about a network that could not be applied."""
    return f"network:{vm_id}"
