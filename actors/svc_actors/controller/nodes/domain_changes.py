"""Records changes of single guests on hosts; the Node actor records whole inventories."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from svc_actors.store import Queryable
from svc_nodeagent.protocol import DomainState


async def note_domain_changes(
    queryable: Queryable, changes: Sequence[tuple[UUID, UUID, DomainState]]
) -> dict[UUID, tuple[UUID | None, UUID | None]]:
    """Record nodes' reports of machines (node, machine, state), in one statement for all. Returns for each existing
    machine the node on which it is placed, and the other node of its move.

    The placement is read without the machine's lock, since a holder of the lock must not delay the nodes' reports; it
    is read again under the lock.
    """
    rows = await queryable.fetch(
        """WITH noted AS (
               UPDATE observed_domains SET state = seen.state, seen_at = now()
               FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS seen (node_id, vm_id, state)
               WHERE observed_domains.node_id = seen.node_id AND observed_domains.vm_id = seen.vm_id
           )
           SELECT id, node_id, coalesce(moved_from, moving_to) AS moves_with FROM vms
           WHERE id = ANY($2::uuid[]) AND deleted_at IS NULL""",
        [node_id for node_id, _, _ in changes],
        [vm_id for _, vm_id, _ in changes],
        [state.value for _, _, state in changes],
    )
    return {row["id"]: (row["node_id"], row["moves_with"]) for row in rows}
