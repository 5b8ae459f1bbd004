"""Records of volumes: the only module that writes their table, except for volumes found by an inventory (`observing`).

Invariants:
- a volume's row is locked while it is decided on, so of concurrent orders one is accepted;
- a project's limits are checked under the lock of the project's row, in the transaction that uses them;
- room on the node is checked under the lock of its capacity, and reserved by triggers (migration 0045);
- locks are taken in the order machine, volume, project, node_capacity.

Why: docs/decisions/0028-volumes-outlive-machines.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from svc_actors.alerts import close_alert
from svc_actors.controller.placement.scheduler import require_room
from svc_actors.controller.volumes.states import Event, Finding, IllegalMove, VolumeOrder, VolumeState, move
from svc_actors.store import Queryable, Record, Target, Transaction, UniqueViolationError
from svc_common.errors import ServiceError, capacity, conflict, not_found, not_ready, unavailable
from svc_nodeagent.protocol import MOST_VOLUMES, DiskSpec, volume_serial

MOST: Final = 10
MOST_GIB: Final = 500
"""The default limit of a project, in GiB."""
MOST_KEPT: Final = 16
"""The most kept disks of a deleted machine that become volumes, whatever its node reports: as many as a machine can
have."""
SPEAKS: Final = 5
"""The first version of the node protocol that has volumes."""

_PARTICIPLES: Final = {
    VolumeOrder.ATTACH: "attached",
    VolumeOrder.DETACH: "detached",
    VolumeOrder.GROW: "grown",
    VolumeOrder.DELETE: "deleted",
}


@dataclass(frozen=True)
class VolumeRow:
    id: UUID
    name: str
    project_id: UUID | None
    node_id: UUID
    size_gib: int
    state: VolumeState
    vm_id: UUID | None
    disk_index: int | None
    protected: bool
    kept_name: str | None
    made: bool
    ordered_gib: int
    """The size that counts towards the project's limit: 0 for a volume that is known only from its node's report."""

    @property
    def target(self) -> Target:
        return Target("volume", self.id, self.name, self.project_id)

    @property
    def place(self) -> Finding:
        """The volume's recorded place."""
        return Finding.FREE if self.vm_id is None else Finding.ATTACHED


@dataclass(frozen=True)
class NewVolume:
    """The volume to create. `bounded`: the project's limits apply, as for a customer."""

    name: str
    project_id: UUID
    node_id: UUID
    size_gib: int
    labels: Mapping[str, str]
    bounded: bool
    delete_with_machine: bool = False
    protected: bool = False


@dataclass(frozen=True)
class VolumeSettings:
    """Fields of a volume that are changed without its node; None leaves one as it is."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    protected: bool | None = None
    delete_with_machine: bool | None = None
    project_id: UUID | None = None


async def lock_volume(tx: Transaction, volume_id: UUID) -> VolumeRow:
    """The volume's row, locked until the transaction ends. Raises not_found."""
    row = await tx.fetchrow("SELECT * FROM volumes WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE", volume_id)
    if row is None:
        raise not_found("There is no such volume.")
    return as_volume(row)


def as_volume(row: Record) -> VolumeRow:
    return VolumeRow(
        id=row["id"],
        name=row["name"],
        project_id=row["project_id"],
        node_id=row["node_id"],
        size_gib=row["size_gib"],
        state=VolumeState(row["state"]),
        vm_id=row["vm_id"],
        disk_index=row["disk_index"],
        protected=row["protected"],
        kept_name=row["kept_name"],
        made=row["made_at"] is not None,
        ordered_gib=row["ordered_gib"] or 0,
    )


async def insert_volume(
    tx: Transaction, new: NewVolume, created_by: UUID | None, *, vm_id: UUID | None = None
) -> VolumeRow:
    """Record a volume, reserving capacity of its project and its node. Raises capacity, conflict, unavailable."""
    index = await _free_index(tx, vm_id) if vm_id is not None else None
    await require_node(tx, new.node_id)
    await _require_allowed(tx, new.project_id, volumes=1, gib=new.size_gib, bounded=new.bounded)
    await require_room(tx, new.node_id, vcpus=0, memory_mib=0, disk_gib=new.size_gib)
    try:
        async with tx.savepoint():
            row = await tx.fetchone(
                """INSERT INTO volumes (name, project_id, node_id, size_gib, ordered_gib, state, vm_id, disk_index,
                                        labels, delete_with_machine, protected, created_by)
                   VALUES ($1, $2, $3, $4, $4, 'creating', $5, $6, $7, $8, $9, $10) RETURNING *""",
                new.name,
                new.project_id,
                new.node_id,
                new.size_gib,
                vm_id,
                index,
                dict(new.labels),
                new.delete_with_machine,
                new.protected,
                created_by,
            )
    except UniqueViolationError:
        raise _taken(new.name) from None
    return as_volume(row)


async def accept_attachment(tx: Transaction, volume: VolumeRow, *, vm_id: UUID, node_id: UUID | None) -> VolumeRow:
    """Accept an attachment; the machine is locked and idle. Raises conflict if the volume cannot be attached to it."""
    _require(volume, VolumeOrder.ATTACH)
    if volume.project_id is None:
        raise conflict(
            "The volume belongs to no project, so it was not changed.", hint="Give it to a project first (project_id)."
        )
    project_id = await tx.fetchval("SELECT project_id FROM vms WHERE id = $1", vm_id)
    if project_id != volume.project_id:
        raise conflict("The volume and the machine are of different projects; nothing was changed.")
    if node_id != volume.node_id:
        raise conflict(
            "The volume and the machine are on different nodes, and a volume is a disk of its node; nothing was"
            " changed.",
            hint="Attach it to a machine of its own node, or have the machine moved there.",
        )
    index = await _free_index(tx, vm_id)
    return await _write(tx, volume, VolumeOrder.ATTACH, vm_id=vm_id, index=index)


async def accept_order(tx: Transaction, volume: VolumeRow, order: VolumeOrder) -> VolumeRow:
    """Accept a detachment or a deletion. Raises conflict."""
    _require(volume, order)
    if order is VolumeOrder.DELETE:
        if volume.protected:
            raise conflict(
                "The volume is protected and cannot be deleted; nothing was changed.",
                hint="Remove the protection first.",
            )
        if volume.vm_id is not None:
            raise conflict("A machine has the volume; nothing was changed.", hint="Detach it first.")
    return await _write(tx, volume, order, vm_id=volume.vm_id, index=volume.disk_index)


async def accept_growth(tx: Transaction, volume: VolumeRow, size_gib: int, *, bounded: bool) -> VolumeRow:
    """Raises capacity, conflict."""
    _require(volume, VolumeOrder.GROW)
    if size_gib <= volume.size_gib:
        raise conflict(
            f"The volume has {volume.size_gib} GiB, and a volume only grows; nothing was changed.",
            hint=f"Choose more than {volume.size_gib} GiB.",
            details={"size_gib": volume.size_gib},
        )
    if volume.project_id is not None:
        more = size_gib - volume.ordered_gib
        await _require_allowed(tx, volume.project_id, volumes=0, gib=more, bounded=bounded)
    await require_room(tx, volume.node_id, vcpus=0, memory_mib=0, disk_gib=size_gib - volume.size_gib)
    await _write(tx, volume, VolumeOrder.GROW, vm_id=volume.vm_id, index=volume.disk_index)
    row = await tx.fetchone(
        "UPDATE volumes SET size_gib = $2, ordered_gib = $2 WHERE id = $1 RETURNING *", volume.id, size_gib
    )
    return as_volume(row)


async def write_size(tx: Transaction, volume_id: UUID, size_gib: int) -> None:
    """Set the ordered size."""
    await tx.execute(
        "UPDATE volumes SET size_gib = $2, ordered_gib = $2, changed_at = now() WHERE id = $1", volume_id, size_gib
    )


async def write_reported_sizes(tx: Transaction, sizes_gib: Mapping[UUID, int]) -> None:
    """Set the sizes that the volumes' nodes report, whatever was ordered."""
    if sizes_gib:
        await tx.execute(
            """UPDATE volumes SET size_gib = said.gib, changed_at = now()
               FROM unnest($1::uuid[], $2::integer[]) AS said (id, gib) WHERE volumes.id = said.id""",
            list(sizes_gib),
            list(sizes_gib.values()),
        )


async def write_lost(tx: Transaction, volumes: Collection[VolumeRow], error: str) -> None:
    """Record many lost volumes at once: as `record_finding` with `Finding.LOST` for each. All these volumes had been
    created."""
    if volumes:
        await tx.execute(
            "UPDATE volumes SET state = $2, error = $3, missing = true, changed_at = now() WHERE id = ANY($1::uuid[])",
            [volume.id for volume in volumes],
            VolumeState.FAILED.value,
            error,
        )


async def record_finding(
    tx: Transaction,
    volume: VolumeRow,
    finding: Finding,
    *,
    error: str | None = None,
    vm_id: UUID | None = None,
    index: int | None = None,
) -> VolumeState:
    """Record where the volume is. `vm_id` and `index`: the machine and place at which it is attached, by default the
    recorded ones."""
    state = move(volume.state, finding)
    made = finding in (Finding.FREE, Finding.ATTACHED) or volume.made
    keeps = finding is Finding.ATTACHED or (finding is Finding.LOST and volume.made)
    await tx.execute(
        """UPDATE volumes SET state = $2, error = $3, missing = false, vm_id = $4, disk_index = $5, changed_at = now(),
                              made_at = CASE WHEN $6 THEN coalesce(made_at, now()) ELSE made_at END,
                              deleted_at = CASE WHEN $2 = 'deleted' THEN now() END
           WHERE id = $1""",
        volume.id,
        state.value,
        error if finding is Finding.LOST else None,
        (vm_id or volume.vm_id) if keeps else None,
        (index or volume.disk_index) if keeps else None,
        made,
    )
    if finding is not Finding.LOST:
        await close_alert(tx, missing_alert(volume.id))
    return state


async def write_settings(tx: Transaction, volume: VolumeRow, settings: VolumeSettings) -> None:
    """Write the settings that are not None. Raises conflict if the name is taken, and for a change of project while a
    machine has the volume."""
    if settings.project_id not in (None, volume.project_id) and volume.vm_id is not None:
        raise conflict("A machine of its project has the volume; nothing was changed.", hint="Detach it first.")
    try:
        async with tx.savepoint():
            await tx.execute(
                """UPDATE volumes SET name = coalesce($2, name), labels = coalesce($3, labels),
                       protected = coalesce($4, protected), project_id = coalesce($5, project_id),
                       ordered_gib = CASE WHEN $5 <> project_id OR project_id IS NULL AND $5 IS NOT NULL THEN size_gib
                                          ELSE ordered_gib END,
                       delete_with_machine = coalesce($6, delete_with_machine)
                   WHERE id = $1""",
                volume.id,
                settings.name,
                None if settings.labels is None else dict(settings.labels),
                settings.protected,
                settings.project_id,
                settings.delete_with_machine,
            )
    except UniqueViolationError:
        raise _taken(settings.name or volume.name) from None


async def keep_disk(
    tx: Transaction,
    *,
    name: str,
    project_id: UUID | None,
    node_id: UUID,
    size_gib: int,
    kept_name: str,
    vm_id: UUID,
    ordered: bool,
) -> None:
    """Record a kept disk as a volume, unless it is recorded already; the project's limits do not apply. `ordered`: the
    owner ordered to keep the disk; otherwise it is known only from its node's report."""
    if await tx.fetchval("SELECT true FROM volumes WHERE node_id = $1 AND kept_name = $2", node_id, kept_name):
        return
    for each in (name, f"{name}-{uuid4().hex[:8]}"):
        try:
            async with tx.savepoint():
                await tx.execute(
                    """INSERT INTO volumes (name, project_id, node_id, size_gib, ordered_gib, state, kept_name, kept_of,
                                            made_at)
                       VALUES ($1, $2, $3, $4, CASE WHEN $7 THEN $4::integer END, 'available', $5, $6, now())
                       ON CONFLICT (node_id, kept_name) WHERE kept_name IS NOT NULL DO NOTHING""",
                    each,
                    project_id,
                    node_id,
                    size_gib,
                    kept_name,
                    vm_id,
                    ordered,
                )
        except UniqueViolationError:
            continue
        return


async def machine_gone(tx: Transaction, vm_id: UUID, destroyed: Sequence[UUID]) -> None:
    """The machine's host has deleted it: its volumes are free, except for the `destroyed` ones."""
    rows = await tx.fetch("SELECT * FROM volumes WHERE vm_id = $1 ORDER BY id FOR NO KEY UPDATE", vm_id)
    for volume in map(as_volume, rows):
        gone = volume.id in destroyed
        try:
            await record_finding(tx, volume, Finding.GONE if gone else Finding.FREE)
        except IllegalMove:
            await record_finding(tx, volume, Finding.LOST, error="Its machine was deleted while it was worked on.")


async def volumes_deleted_with(tx: Transaction, vm_id: UUID, *, all_of_them: bool) -> list[UUID]:
    """The volumes that a deletion of the machine destroys. Raises conflict if one of them is protected."""
    rows = await tx.fetch(
        "SELECT * FROM volumes WHERE vm_id = $1 AND ($2 OR delete_with_machine) ORDER BY id FOR NO KEY UPDATE",
        vm_id,
        all_of_them,
    )
    for row in rows:
        if row["protected"]:
            raise conflict(
                f"Volume {row['name']} would be deleted with the machine, and is protected; nothing was changed.",
                hint="Remove its protection, or detach it first.",
            )
    return [row["id"] for row in rows]


async def attached_disks(queryable: Queryable, vm_id: UUID) -> tuple[DiskSpec, ...]:
    """A machine's volumes in the form of its node's disks."""
    rows = await queryable.fetch(
        """SELECT id, disk_index, size_gib FROM volumes
           WHERE vm_id = $1 AND state NOT IN ('creating', 'attaching') ORDER BY disk_index""",
        vm_id,
    )
    return tuple(DiskSpec(index=row["disk_index"], size_gib=row["size_gib"], volume_id=row["id"]) for row in rows)


async def require_node(queryable: Queryable, node_id: UUID) -> None:
    """Raises unavailable or conflict for a node that cannot execute an order now."""
    node = await queryable.fetchrow(
        """SELECT name, state, mode, lost_at IS NOT NULL AS lost, agent_protocol FROM nodes
           WHERE id = $1 AND deleted_at IS NULL""",
        node_id,
    )
    if node is None:
        raise not_found("There is no such node.")
    if node["lost"]:
        raise conflict("The volume's node is lost; nothing was changed.", hint="It can only be deleted.")
    if node["mode"] == "observe":
        raise conflict("The node is only observed; nothing was changed.")
    if node["state"] != "online":
        raise unavailable("The volume's node is not online; nothing was changed.", hint="Try again once it is back.")
    if node["agent_protocol"] is not None and node["agent_protocol"] < SPEAKS:
        raise conflict(
            "The agent of the node has a release without volumes; nothing was changed.",
            hint="An administrator upgrades it (`svc node upgrade`).",
        )


def serial_of(volume_id: UUID) -> str:
    """The disk's serial number in the guest."""
    return volume_serial(volume_id)


def missing_alert(volume_id: UUID) -> str:
    return f"volume-missing:{volume_id}"


def many_missing_alert(node_id: UUID) -> str:
    """The key of the common alert about a node on which many volumes are missing."""
    return f"volumes-missing:{node_id}"


def found_alert(node_id: UUID) -> str:
    """The key of the alert about a node that reports more disks than are recorded for it."""
    return f"volumes-found:{node_id}"


async def _free_index(tx: Transaction, vm_id: UUID) -> int:
    taken = {row["disk_index"] for row in await tx.fetch("SELECT disk_index FROM volumes WHERE vm_id = $1", vm_id)}
    if len(taken) >= MOST_VOLUMES:
        raise conflict(
            f"The machine has {len(taken)} volumes, and may have {MOST_VOLUMES}; nothing was changed.",
            hint="Detach one of them first.",
            details={"limit": MOST_VOLUMES},
        )
    return next(index for index in range(1, MOST_VOLUMES + 1) if index not in taken)


async def _require_allowed(tx: Transaction, project_id: UUID, *, volumes: int, gib: int, bounded: bool) -> None:
    """Raises not_found, and capacity beyond the project's limits."""
    if await tx.fetchval("SELECT id FROM projects WHERE id = $1 FOR NO KEY UPDATE", project_id) is None:
        raise not_found("There is no such project.")
    if not bounded:
        return
    rows = await tx.fetch("SELECT name, value FROM settings WHERE name IN ('most_volumes', 'most_volume_gib')")
    set_to = {row["name"]: int(row["value"]) for row in rows}
    most, most_gib = set_to.get("most_volumes", MOST), set_to.get("most_volume_gib", MOST_GIB)
    has = await tx.fetchone(
        """SELECT count(*) AS volumes, coalesce(sum(ordered_gib), 0)::int AS gib FROM volumes
           WHERE project_id = $1 AND ordered_gib IS NOT NULL AND deleted_at IS NULL
                 AND NOT (state = 'failed' AND made_at IS NULL)""",
        project_id,
    )
    if volumes and has["volumes"] + volumes > most:
        raise capacity(
            f"The project has {has['volumes']} volumes, and may have {most}; nothing was changed.",
            hint="Delete one of them, or ask your provider for more.",
            details={"limit": most},
        )
    if has["gib"] + gib > most_gib:
        raise capacity(
            f"The project's volumes have {has['gib']} GiB, and may have {most_gib} GiB; nothing was changed.",
            hint="Choose less, delete a volume, or ask your provider for more.",
            details={"limit_gib": most_gib, "used_gib": has["gib"]},
        )


def _require(volume: VolumeRow, order: VolumeOrder) -> None:
    """Raises conflict if the table has no such move, not_ready while a task is under way."""
    try:
        move(volume.state, order)
    except IllegalMove:
        raise _refused(volume, order) from None


def _refused(volume: VolumeRow, order: VolumeOrder) -> ServiceError:
    under_way = volume.state not in (VolumeState.AVAILABLE, VolumeState.IN_USE, VolumeState.FAILED)
    state = volume.state.value.replace("_", " ")
    words = f"The volume is {state} and cannot be {_PARTICIPLES[order]}; nothing was changed."
    details = {"state": volume.state.value}
    if under_way:
        return not_ready(words, hint="Wait for its task.", details=details)
    hint = "Detach it first." if volume.state is VolumeState.IN_USE else None
    return conflict(words, hint=hint, details=details)


async def _write(
    tx: Transaction, volume: VolumeRow, event: Event, *, vm_id: UUID | None, index: int | None
) -> VolumeRow:
    row = await tx.fetchone(
        """UPDATE volumes SET state = $2, vm_id = $3, disk_index = $4, error = NULL, missing = false,
                              changed_at = now()
           WHERE id = $1 RETURNING *""",
        volume.id,
        move(volume.state, event).value,
        vm_id,
        index,
    )
    return as_volume(row)


def _taken(name: str) -> ServiceError:
    return conflict(f"The project has a volume named {name} already; nothing was changed.", hint="Give another name.")
