"""That what a host shall carry for a machine has changed: said in the transaction that changes it.

Invariant: a machine's `net_wanted` grows in the same transaction as anything that `machine_spec.network_spec` reads, so
a host that has applied an older generation is known to be behind, whatever crashed in between. The network watch brings
it up to date, at once and again until it succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from svc_actors.store import Transaction

CHANNEL: Final = "svc_network"
"""The PostgreSQL channel on which the network watch hears of a commit."""


async def network_changed(tx: Transaction, vm_ids: Iterable[UUID]) -> None:
    """What these machines' hosts shall carry is other than before."""
    changed = await tx.execute(
        "UPDATE vms SET net_wanted = net_wanted + 1 WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL",
        sorted(set(vm_ids)),
    )
    if changed != "UPDATE 0":
        await tx.execute("SELECT pg_notify($1, '')", CHANNEL)
