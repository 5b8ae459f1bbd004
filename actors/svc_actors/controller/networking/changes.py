"""That what a host shall carry for a machine has changed, and what the host has said of it: said in the transaction
that changes it, or that stores the host's word.

Invariants:
- a machine's `net_wanted` grows in the same transaction as anything that `machine_spec.network_spec` reads, so a host
  that has applied an older generation is known to be behind, whatever crashed in between. The network watch brings it
  up to date, at once and again until it succeeds;
- `net_applied` is what the host itself has said, and never goes back; a host that is ahead of the record (which was put
  back from a copy, say) is overtaken: the record goes past it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert
from svc_actors.store import Transaction

CHANNEL: Final = "svc_network"
"""The PostgreSQL channel on which the network watch hears of a commit."""

MOST_BELIEVED: Final = 2**52
"""No record grows so far. A host that says more is mistaken, and is not followed to where numbers end."""


async def network_changed(tx: Transaction, vm_ids: Iterable[UUID]) -> None:
    """What these machines' hosts shall carry is other than before. Their rows are locked in the order of their ids, as
    everybody does who locks several."""
    changed = await tx.execute(
        """WITH changed AS MATERIALIZED (
               SELECT id FROM vms WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE
           )
           UPDATE vms SET net_wanted = net_wanted + 1 FROM changed WHERE vms.id = changed.id""",
        list(set(vm_ids)),
    )
    if changed != "UPDATE 0":
        await call_watch(tx)


async def network_applied(tx: Transaction, vm_id: UUID, generation: int) -> bool:
    """The machine's host has said that it has this generation. Gives whether that is news, which the caller announces;
    it is none of a machine that is gone, nor is a generation beyond `MOST_BELIEVED`."""
    if generation > MOST_BELIEVED:
        return False
    row = await tx.fetchrow(
        """UPDATE vms SET net_applied = greatest(vms.net_applied, $2),
                          net_wanted = CASE WHEN $2 > vms.net_wanted THEN $2 + 1 ELSE vms.net_wanted END,
                          net_error = CASE WHEN $2 >= vms.net_wanted THEN NULL ELSE vms.net_error END,
                          net_failed_at = CASE WHEN $2 >= vms.net_wanted THEN NULL ELSE vms.net_failed_at END
           FROM (SELECT id, net_applied, net_error FROM vms WHERE id = $1 FOR NO KEY UPDATE) before
           WHERE vms.id = before.id AND vms.deleted_at IS NULL
           RETURNING vms.net_applied > before.net_applied AS advanced, vms.net_applied < vms.net_wanted AS behind,
                     before.net_error IS NOT NULL AND vms.net_error IS NULL AS recovered""",
        vm_id,
        generation,
    )
    if row is None:
        return False
    if row["recovered"]:
        await close_alert(tx, network_alert(vm_id))
    if row["behind"]:
        await call_watch(tx)
    return bool(row["advanced"] or row["recovered"])


async def call_watch(tx: Transaction) -> None:
    """Have the network watch look, once this is committed."""
    tx.announce(CHANNEL)


def network_alert(vm_id: UUID) -> str:
    """The key of the alert that a machine's network could not be applied."""
    return f"network:{vm_id}"
