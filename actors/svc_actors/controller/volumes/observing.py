"""Compares a node's inventory of volumes with the records, and updates records that are behind.

    recorded volume         free, attached to another machine than recorded, of another size, or missing
    without a record        created since the backup that the controller was restored from, or a disk kept before there
                            were volumes: recorded without a project, unless its machine determines the project

Invariants: while a task of a volume is under way, the task decides about it; a decision made after the inventory was
requested is newer than the inventory; a deleted volume is not brought back; nothing is removed from a node.

A node reports which volumes it has, never who owns them. A found volume belongs to the project of a machine that is or
was on the node by the records, and to no other. It counts towards no limit of the project (`ordered_gib`), may not
exceed the machine's limit, and the number of such rows per node is limited; the rest is one alert. Many lost volumes
share one alert, too: a file system that is not mounted loses thousands. However long the lists are, they take a few
statements, since the node's row is locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from svc_actors.alerts import CustomerNotice, Severity, close_alert, raise_alert
from svc_actors.controller.volumes.records import (
    MOST_KEPT,
    VolumeRow,
    as_volume,
    found_alert,
    keep_disk,
    many_missing_alert,
    missing_alert,
    record_finding,
    write_lost,
    write_reported_sizes,
)
from svc_actors.controller.volumes.states import Finding, IllegalMove, VolumeState
from svc_actors.store import Transaction, UniqueViolationError
from svc_nodeagent.protocol import MOST_VOLUMES, InventoryResult, KeptDisk, ObservedVolume

_GIB: Final = 1024**3
log = structlog.get_logger(__name__)
MOST_FOUND: Final = 256
"""The most volumes and kept disks without a project that are recorded per node. Assigning some to a project makes room
for others."""
MOST_TOLD_ALONE: Final = 10
"""Up to this many lost volumes of a node get an alert each, which their owners see."""
ALONE_AGAIN: Final = 5
"""Once a node's lost volumes have a common alert, their number must fall to this before they get separate alerts again:
hysteresis against flapping."""
_MOST_NAMED: Final = 5
_MOST_GIB: Final = 2**20
"""Larger than any file system; sums of such sizes still fit into a column."""

# All volumes that the inventory can concern. `decided`: an order has changed the volume since the inventory was
# requested, or an open task is about to.
_RECORDED: Final = """
SELECT volumes.*, volumes.changed_at > $3 OR EXISTS (
           SELECT FROM tasks WHERE status IN ('queued', 'running')
              AND (resource_kind = 'volume' AND resource_id = volumes.id
                   OR resource_kind = 'vm' AND resource_id = volumes.vm_id)) AS decided
FROM volumes WHERE node_id = $1 AND deleted_at IS NULL OR id = ANY($2::uuid[]) ORDER BY id
FOR NO KEY UPDATE OF volumes SKIP LOCKED"""

_MOST: Final = 200


async def record_volumes(tx: Transaction, node_id: UUID, inventory: InventoryResult, asked_at: datetime) -> None:
    """Record an inventory; the node's row is locked. The report of an agent that does not support volumes has none
    (None)."""
    if inventory.volumes is None:
        return
    seen = {each.volume_id: each for each in inventory.volumes}
    kept = {each.name: each for each in inventory.kept_disks}
    rows = await tx.fetch(_RECORDED, node_id, list(seen), asked_at)
    lost: list[VolumeRow] = []
    sizes: dict[UUID, int] = {}
    for row in rows:
        volume = as_volume(row)
        here = volume.node_id == node_id and row["moving_to"] is None and row["moved_from"] is None
        if not here or row["decided"] or volume.state is VolumeState.DELETED:
            continue
        disk = kept.get(volume.kept_name or "")
        observed = seen.get(volume.id)
        size_bytes = observed.size_bytes if observed is not None else disk.size_bytes if disk is not None else 0
        if size_bytes:
            await _compare(tx, volume, observed)
            if (size_gib := _gib(size_bytes)) != volume.size_gib:
                sizes[volume.id] = size_gib
        elif volume.made and volume.state is not VolumeState.FAILED:
            lost.append(volume)
    await write_reported_sizes(tx, sizes)
    await write_lost(tx, lost, "Its node no longer has it.")
    await _tell_of_lost(tx, node_id)
    known = {row["id"] for row in rows}
    new = [each for each in seen.values() if each.volume_id not in known and each.size_bytes]
    left_out = await _record_found(tx, node_id, new)
    left_out += await _record_kept(tx, node_id, list(kept.values()))
    await _tell_of_left_out(tx, node_id, left_out)


async def _compare(tx: Transaction, volume: VolumeRow, observed: ObservedVolume | None) -> None:
    """Update the recorded place of an existing volume."""
    vm_id, index = (observed.vm_id, observed.index) if observed is not None else (None, None)
    settled = volume.state in (VolumeState.AVAILABLE, VolumeState.IN_USE)
    if not settled or (vm_id, index) != (volume.vm_id, volume.disk_index):
        if vm_id is None:
            await _found(tx, volume, Finding.FREE)
        elif await _may_have(tx, vm_id, volume):
            await _found(tx, volume, Finding.ATTACHED, vm_id=vm_id, index=index)


async def _found(
    tx: Transaction, volume: VolumeRow, finding: Finding, *, vm_id: UUID | None = None, index: int | None = None
) -> None:
    """Record where the volume was found. If the records do not allow it yet (another volume is recorded at that place),
    the next inventory tries again."""
    try:
        async with tx.savepoint():
            await record_finding(tx, volume, finding, vm_id=vm_id, index=index)
    except (IllegalMove, UniqueViolationError):
        log.warning("volume.not_recorded", volume_id=str(volume.id), state=volume.state.value, found=finding.value)


async def _tell_of_lost(tx: Transaction, node_id: UUID) -> None:
    """Update the alerts for all volumes that are lost now: a few have one each, many a common one."""
    rows = await tx.fetch(
        """SELECT volumes.id, volumes.name, volumes.project_id, nodes.name AS node
           FROM volumes JOIN nodes ON nodes.id = volumes.node_id
           WHERE node_id = $1 AND volumes.deleted_at IS NULL AND volumes.missing
           ORDER BY volumes.created_at, volumes.id""",
        node_id,
    )
    most = ALONE_AGAIN if await _open_alerts(tx, [many_missing_alert(node_id)]) else MOST_TOLD_ALONE
    if len(rows) > most:
        for key in await _open_alerts(tx, [missing_alert(row["id"]) for row in rows]):
            await close_alert(tx, key)
        await raise_alert(
            tx,
            many_missing_alert(node_id),
            f"{len(rows)} volumes are no longer on node {rows[0]['node']}: {_few([row['name'] for row in rows])}."
            " Bring their files back (a file system that is not mounted?), or delete the volumes.",
            severity=Severity.CRITICAL,
            resource_kind="node",
            resource_id=node_id,
        )
        return
    await close_alert(tx, many_missing_alert(node_id))
    for row in rows:
        told = None
        if row["project_id"] is not None:
            told = CustomerNotice(
                row["project_id"], f"Volume {row['name']} is no longer on its node; the provider has been notified."
            )
        await raise_alert(
            tx,
            missing_alert(row["id"]),
            f"Volume {row['name']} ({row['id']}) is no longer on node {row['node']}. Bring its file back (a file"
            " system that is not mounted?), or delete the volume.",
            severity=Severity.CRITICAL,
            resource_kind="node",
            resource_id=node_id,
            notice=told,
        )


async def _record_found(tx: Transaction, node_id: UUID, new: Sequence[ObservedVolume]) -> list[str]:
    """Record found volumes. A volume that is attached to a machine belongs to the machine's project, up to the
    machine's limit; one attached to an unknown machine waits until that machine is recorded. Returns the ids that were
    not recorded."""
    if not new:
        return []
    arguments = (
        node_id,
        [each.volume_id for each in new],
        [each.vm_id for each in new],
        [each.index for each in new],
        [_gib(each.size_bytes) for each in new],
    )
    await tx.execute(
        f"""WITH new AS ({_NEW}), placed AS (
               SELECT new.*, row_number() OVER (PARTITION BY new.vm_id ORDER BY index, new.id) AS nth,
                      (SELECT count(*) FROM volumes WHERE vm_id = new.vm_id) AS has
               FROM new
           )
           INSERT INTO volumes (id, name, project_id, node_id, size_gib, state, vm_id, disk_index, made_at)
           SELECT id, 'found-' || left(replace(id::text, '-', ''), 8), project_id, $1, gib,
                  CASE WHEN nobodys THEN 'available' ELSE 'in_use' END, vm_id, index, now()
           FROM placed WHERE CASE WHEN nobodys THEN nth <= $6 ELSE nth + has <= $7 END
           ON CONFLICT DO NOTHING""",
        *arguments,
        await _room_for_nobodys(tx, node_id),
        MOST_VOLUMES,
    )
    rows = await tx.fetch(
        f"""SELECT new.id::text FROM ({_NEW}) new WHERE NOT EXISTS (SELECT FROM volumes WHERE volumes.id = new.id)
            ORDER BY new.id""",
        *arguments,
    )
    return [row["id"] for row in rows]


_NEW: Final = """
SELECT said.*, vms.project_id, said.vm_id IS NULL AS nobodys
FROM unnest($2::uuid[], $3::uuid[], $4::integer[], $5::integer[]) AS said (id, vm_id, index, gib)
LEFT JOIN vms ON vms.id = said.vm_id AND vms.node_id = $1 AND vms.deleted_at IS NULL
WHERE said.vm_id IS NULL OR vms.id IS NOT NULL"""
"""The found volumes and the project of each one's machine, without volumes of machines that are not on the node."""


async def _record_kept(tx: Transaction, node_id: UUID, disks: Sequence[KeptDisk]) -> list[str]:
    """Record kept disks. Those of a machine that is or was on the node belong to its project; others have none. Returns
    the names that were not recorded."""
    new = await tx.fetch(
        """SELECT said.name, said.vm_id, said.vm_name, said.gib, vms.name AS machine, vms.project_id
           FROM unnest($2::text[], $3::uuid[], $4::text[], $5::integer[]) AS said (name, vm_id, vm_name, gib)
           LEFT JOIN vms ON vms.id = said.vm_id AND EXISTS (
               SELECT FROM machine_stays stays WHERE stays.vm_id = vms.id AND stays.node_id = $1)
           WHERE NOT EXISTS (SELECT FROM volumes WHERE volumes.node_id = $1 AND volumes.kept_name = said.name)
           ORDER BY said.name""",
        node_id,
        [disk.name for disk in disks],
        [disk.vm_id for disk in disks],
        [disk.vm_name for disk in disks],
        [_gib(disk.size_bytes) for disk in disks],
    )
    if not new:
        return []
    room = await _room_for_nobodys(tx, node_id)
    rows = await tx.fetch(
        "SELECT kept_of, count(*) AS number FROM volumes WHERE kept_of = ANY($1::uuid[]) GROUP BY kept_of",
        [row["vm_id"] for row in new],
    )
    of_machines = {row["kept_of"]: row["number"] for row in rows}
    left_out, recorded = list[str](), 0
    for row in new:
        nobodys, has = row["project_id"] is None, of_machines.get(row["vm_id"], 0)
        if recorded == MOST_FOUND or (not room if nobodys else has >= MOST_KEPT):
            left_out.append(row["name"])
            continue
        recorded += 1
        room -= nobodys
        of_machines[row["vm_id"]] = has + 1
        await keep_disk(
            tx,
            name=row["machine"] or safe_name(row["vm_name"], f"kept-{row['vm_id'].hex[:8]}"),
            project_id=row["project_id"],
            node_id=node_id,
            size_gib=row["gib"],
            kept_name=row["name"],
            vm_id=row["vm_id"],
            ordered=False,
        )
    return left_out


async def _tell_of_left_out(tx: Transaction, node_id: UUID, left_out: Sequence[str]) -> None:
    if not left_out:
        await close_alert(tx, found_alert(node_id))
        return
    node = await tx.fetchval("SELECT name FROM nodes WHERE id = $1", node_id)
    await raise_alert(
        tx,
        found_alert(node_id),
        f"Node {node} reports {len(left_out)} more disks without a record, which were not added: {_few(left_out)}. "
        f"At most {MOST_FOUND} disks without an owner are recorded of a node, and {MOST_VOLUMES} volumes of a "
        "machine. Delete the recorded ones or assign them to a project, and check the host.",
        resource_kind="node",
        resource_id=node_id,
    )


async def _room_for_nobodys(tx: Transaction, node_id: UUID) -> int:
    has = await tx.fetchval(
        "SELECT count(*) FROM volumes WHERE node_id = $1 AND project_id IS NULL AND deleted_at IS NULL", node_id
    )
    return max(0, MOST_FOUND - int(has))


async def _open_alerts(tx: Transaction, keys: Collection[str]) -> list[str]:
    rows = await tx.fetch("SELECT key FROM alerts WHERE key = ANY($1::text[]) AND closed_at IS NULL", list(keys))
    return [row["key"] for row in rows]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(name[:64] for name in names[:_MOST_NAMED]) + more


def _gib(size_bytes: int) -> int:
    return min(max(1, -(-size_bytes // _GIB)), _MOST_GIB)


async def _may_have(tx: Transaction, vm_id: UUID, volume: VolumeRow) -> bool:
    """Whether the machine is on the node and may have the volume: it is of the same project or of none, and the
    machine's limit is not reached."""
    return bool(
        await tx.fetchval(
            """SELECT ($3::uuid IS NULL OR project_id = $3)
                      AND (SELECT count(*) FROM volumes WHERE vm_id = $1 AND id <> $4) < $5
               FROM vms WHERE id = $1 AND node_id = $2 AND deleted_at IS NULL""",
            vm_id,
            volume.node_id,
            volume.project_id,
            volume.id,
            MOST_VOLUMES,
        )
    )


# A name reported by a host is used if a person could have chosen it, and replaced otherwise.
def safe_name(said: str, otherwise: str) -> str:
    """`said` if it is one non-blank line of at most `_MOST` characters, without control characters or characters that
    change the text's direction; else `otherwise`."""
    return said if said.strip() and said.isprintable() and len(said) <= _MOST else otherwise
