-- The nodes that were asked to back a machine up: each may have something of it at its target, complete copies or what
-- attempts that were cut short have left.
CREATE TABLE machine_backup_stores (
    vm_id   uuid NOT NULL REFERENCES vms,
    node_id uuid NOT NULL REFERENCES nodes,
    PRIMARY KEY (vm_id, node_id)
);

INSERT INTO machine_backup_stores (vm_id, node_id)
SELECT copies.vm_id, copies.node_id FROM machine_backups copies JOIN vms ON vms.id = copies.vm_id
WHERE vms.deleted_at IS NULL OR vms.copies_until IS NOT NULL
UNION
SELECT tasks.resource_id, tasks.node_id FROM tasks JOIN vms ON vms.id = tasks.resource_id JOIN nodes ON nodes.id = tasks.node_id
WHERE tasks.resource_kind = 'vm' AND tasks.op = 'vm.backup' AND (vms.deleted_at IS NULL OR vms.copies_until IS NOT NULL
    OR NOT EXISTS (SELECT FROM machine_backups WHERE vm_id = vms.id));

-- Of deleted machines without a complete copy nobody needs what is there.
UPDATE vms SET copies_until = now()
WHERE deleted_at IS NOT NULL AND copies_until IS NULL
  AND EXISTS (SELECT FROM machine_backup_stores WHERE vm_id = vms.id);
