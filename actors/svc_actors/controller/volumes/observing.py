"""What a node's inventory says of volumes: held against the records, and recorded where they are behind.

    of a project's volume   free, attached to another machine than recorded, larger, or not there any more
    without a record        made since the backup that the controller was restored from, or a disk kept before volumes
                            were: recorded as nobody's, unless the machine that it is of says whose it is

Invariants: what has a task under way is its task's to decide; what was decided since the inventory was asked for is
newer; a volume that was deleted is not brought back; nothing is removed from a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from svc_actors.alerts import Severity, Told, raise_alert
from svc_actors.controller.volumes.records import (
    VolumeRow,
    as_volume,
    found,
    keep_disk,
    missing_alert,
    write_size,
)
from svc_actors.controller.volumes.states import Finding, IllegalMove, VolumeState
from svc_actors.store import Transaction, UniqueViolationError
from svc_nodeagent.protocol import InventoryResult, KeptDisk, ObservedVolume

_GIB: Final = 1024**3
log = structlog.get_logger(__name__)
_MISSING: Final = "Its node does not have it any more."

# All that the inventory can concern, but for what was decided since it was asked for and what a task decides.
_RECORDED: Final = """
SELECT volumes.*, volumes.changed_at > $3 OR EXISTS (
           SELECT FROM tasks WHERE status IN ('queued', 'running')
              AND (resource_kind = 'volume' AND resource_id = volumes.id
                   OR resource_kind = 'vm' AND resource_id = volumes.vm_id)) AS decided
FROM volumes WHERE node_id = $1 AND deleted_at IS NULL OR id = ANY($2::uuid[]) ORDER BY id
FOR NO KEY UPDATE OF volumes SKIP LOCKED"""


async def record_volumes(tx: Transaction, node_id: UUID, inventory: InventoryResult, asked_at: datetime) -> None:
    """The node's row is locked. An agent that knows no volumes says nothing of them."""
    if inventory.volumes is None:
        return
    seen = {each.volume_id: each for each in inventory.volumes}
    kept = {each.name: each for each in inventory.kept_disks}
    rows = await tx.fetch(_RECORDED, node_id, list(seen), asked_at)
    names = {row["kept_name"] for row in rows if row["kept_name"] is not None and row["id"] not in seen}
    for row in rows:
        volume = as_volume(row)
        here = volume.node_id == node_id and row["moving_to"] is None and row["moved_from"] is None
        if here and not row["decided"] and volume.state is not VolumeState.DELETED:
            await _compare(tx, volume, seen.get(volume.id), kept)
    known = {row["id"] for row in rows}
    for observed in inventory.volumes:
        if observed.volume_id not in known and observed.size_bytes:
            await _record_found(tx, node_id, observed)
    for disk in inventory.kept_disks:
        if disk.name not in names:
            await _record_kept(tx, node_id, disk)


async def _compare(
    tx: Transaction, volume: VolumeRow, observed: ObservedVolume | None, kept: Mapping[str, KeptDisk]
) -> None:
    disk = kept.get(volume.kept_name or "")
    size_bytes = observed.size_bytes if observed is not None else disk.size_bytes if disk is not None else 0
    if not size_bytes:
        if volume.made and volume.state is not VolumeState.FAILED:
            await _missing(tx, volume)
        return
    vm_id, index = (observed.vm_id, observed.index) if observed is not None else (None, None)
    settled = volume.state in (VolumeState.AVAILABLE, VolumeState.IN_USE)
    if not settled or (vm_id, index) != (volume.vm_id, volume.disk_index):
        if vm_id is None:
            await _found(tx, volume, Finding.FREE)
        elif await _project_of(tx, vm_id, volume.node_id) is not None:
            await _found(tx, volume, Finding.ATTACHED, vm_id=vm_id, index=index)
    if (size_gib := -(-size_bytes // _GIB)) != volume.size_gib:
        await write_size(tx, volume.id, size_gib)


async def _found(
    tx: Transaction, volume: VolumeRow, finding: Finding, *, vm_id: UUID | None = None, index: int | None = None
) -> None:
    """What the records do not let be yet (another volume is recorded at that place) is for the next inventory."""
    try:
        async with tx.savepoint():
            await found(tx, volume, finding, vm_id=vm_id, index=index)
    except (IllegalMove, UniqueViolationError):
        log.warning("volume.not_recorded", volume_id=str(volume.id), state=volume.state.value, found=finding.value)


async def _missing(tx: Transaction, volume: VolumeRow) -> None:
    await found(tx, volume, Finding.LOST, error=_MISSING)
    node = await tx.fetchval("SELECT name FROM nodes WHERE id = $1", volume.node_id)
    told = None
    if volume.project_id is not None:
        told = Told(volume.project_id, f"Volume {volume.name} is not on its node any more; the provider was told.")
    await raise_alert(
        tx,
        missing_alert(volume.id),
        f"Volume {volume.name} ({volume.id}) is not on node {node} any more. Bring its file back (a file system that is"
        " not mounted?), or delete the volume.",
        severity=Severity.CRITICAL,
        resource_kind="node",
        resource_id=volume.node_id,
        told=told,
    )


async def _record_found(tx: Transaction, node_id: UUID, observed: ObservedVolume) -> None:
    """One that a machine has is its project's; one of a machine that no record knows waits for that."""
    project_id = None
    if observed.vm_id is not None:
        project_id = await _project_of(tx, observed.vm_id, node_id)
        if project_id is None:
            return
    try:
        async with tx.savepoint():
            await tx.execute(
                """INSERT INTO volumes (id, name, project_id, node_id, size_gib, state, vm_id, disk_index, made_at)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now()) ON CONFLICT (id) DO NOTHING""",
                observed.volume_id,
                f"found-{observed.volume_id.hex[:8]}",
                project_id,
                node_id,
                max(1, -(-observed.size_bytes // _GIB)),
                (VolumeState.IN_USE if observed.vm_id is not None else VolumeState.AVAILABLE).value,
                observed.vm_id,
                observed.index,
            )
    except UniqueViolationError:
        log.warning("volume.not_recorded", volume_id=str(observed.volume_id), state="unknown", found="attached")


async def _record_kept(tx: Transaction, node_id: UUID, disk: KeptDisk) -> None:
    machine = await tx.fetchrow("SELECT name, project_id FROM vms WHERE id = $1", disk.vm_id)
    await keep_disk(
        tx,
        name=(machine["name"] if machine is not None else disk.vm_name) or f"kept-{disk.vm_id.hex[:8]}",
        project_id=machine["project_id"] if machine is not None else None,
        node_id=node_id,
        size_gib=max(1, -(-disk.size_bytes // _GIB)),
        kept_name=disk.name,
        vm_id=disk.vm_id,
    )


async def _project_of(tx: Transaction, vm_id: UUID, node_id: UUID) -> UUID | None:
    """None where it is no machine of the node's."""
    project_id: UUID | None = await tx.fetchval(
        "SELECT project_id FROM vms WHERE id = $1 AND node_id = $2 AND deleted_at IS NULL", vm_id, node_id
    )
    return project_id
