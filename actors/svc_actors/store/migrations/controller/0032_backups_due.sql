-- When the machine's last complete backup was begun, less the machine's own seconds within the hour of its plan: what is
-- before the last hour of the plan is overdue, and stands together in the index.
ALTER TABLE vms ADD COLUMN backed_up timestamptz NOT NULL DEFAULT '-infinity';

UPDATE vms SET backed_up = copies.begun_at - ('x' || right(vms.id::text, 8))::bit(32)::bigint % 3600 * interval '1 second'
FROM (SELECT vm_id, max(begun_at) AS begun_at FROM machine_backups WHERE removed_at IS NULL GROUP BY vm_id) copies
WHERE copies.vm_id = vms.id;

CREATE INDEX vms_backed_up ON vms (plan_id, backed_up) WHERE deleted_at IS NULL AND built_at IS NOT NULL;
