"""A machine created from a backup: what it takes over from the machine that was backed up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc.controller.access import require_visible
from svc.controller.machines.models import AccessMode
from svc.registry.principal import Principal, Role
from svc_actors.controller.backups.records import SourceCopy
from svc_actors.sizes import disk_text
from svc_actors.store import Queryable, Record
from svc_common.errors import conflict, not_found, wrong_field

_GIB: Final = 1024**3


@dataclass(frozen=True)
class BackupSource:
    """`image`: `id`, `login_user`, `os_family` and `kind` of the image that the machine was created from. `node_id`:
    the only node that can reach the backup's target; None if every node can."""

    held: SourceCopy
    node_id: UUID | None
    project_id: UUID
    image: Record
    plan_id: UUID | None
    access_mode: AccessMode
    ssh_keys: tuple[str, ...]
    disk_gib: int

    def require_room(self, disk_gib: int) -> None:
        """Raise invalid if a disk of `disk_gib` is smaller than the backup's."""
        if disk_gib < self.disk_gib:
            raise wrong_field("disk_gib", f"the disk of this backup needs at least {disk_text(self.disk_gib)}")


async def backup_source(queryable: Queryable, principal: Principal, backup_id: UUID) -> BackupSource:
    """The machine that a backup is of. Only administrators may use the backups of a deleted machine. Raises not_found,
    conflict."""
    row = await queryable.fetchrow(
        """SELECT vms.*, copies.node_id AS copy_node_id, copies.target_id AS copy_target_id,
                  copies.disks, images.enabled
           FROM machine_backups copies JOIN vms ON vms.id = copies.vm_id JOIN images ON images.id = vms.image_id
           WHERE copies.id = $1 AND copies.removed_at IS NULL""",
        backup_id,
    )
    if row is None or (row["deleted_at"] is not None and principal.role is not Role.ADMINISTRATOR):
        raise not_found("There is no such backup.")
    await require_visible(queryable, principal, row["project_id"], what="backup")
    image = await queryable.fetchone(
        "SELECT id, login_user, os_family, kind FROM images WHERE id = $1", row["image_id"]
    )
    if image["os_family"] == "windows":
        raise conflict(
            "A backup of a Windows machine cannot become a new machine: two machines would have the same identity.",
            hint="Restore the backup to the machine itself.",
        )
    if not row["enabled"]:
        raise conflict(
            "The image that this machine was created from is disabled, so no other machine can be created from it.",
            hint="Ask an administrator to enable the image.",
        )
    if len(row["disks"]) != 1:
        raise conflict("The backup has several disks, but a new machine has one.")
    return BackupSource(
        held=SourceCopy(row["id"], backup_id),
        node_id=row["copy_node_id"] if row["copy_target_id"] is None else None,
        project_id=row["project_id"],
        image=image,
        plan_id=row["plan_id"],
        access_mode=AccessMode(row["access_mode"]),
        ssh_keys=tuple(row["ssh_keys"]),
        disk_gib=-(-row["disks"][0]["size_bytes"] // _GIB),
    )
