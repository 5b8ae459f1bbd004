"""Rows of machines that run, as far as the records say; for tests that need many and none of them built."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from svc_actors.store import Database


async def record_machines(database: Database, node_id: UUID, vm_ids: Iterable[UUID]) -> None:
    """One machine of the first project for each id, placed on the node, built and never heard of since."""
    await database.execute(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
           VALUES ('recorded', 'Recorded', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', true)
           ON CONFLICT DO NOTHING"""
    )
    await database.execute(
        """INSERT INTO vms (id, name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                            access_mode, built_at, desired_power)
           SELECT id, id::text, 'web', (SELECT id FROM projects ORDER BY created_at LIMIT 1), $2,
                  (SELECT id FROM images WHERE slug = 'recorded'), 1, 256, 1, 'running', 'root_key', now(), 'running'
           FROM unnest($1::uuid[]) id""",
        list(vm_ids),
        node_id,
    )
