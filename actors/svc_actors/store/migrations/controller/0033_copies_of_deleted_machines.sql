-- Until when the copies of a deleted machine are kept; they are there, and shall be removed at their target after it.
ALTER TABLE vms ADD COLUMN copies_until timestamptz;
CREATE INDEX vms_copies_until ON vms (copies_until, id) WHERE copies_until IS NOT NULL;

UPDATE vms SET copies_until = now() + interval '30 days'
WHERE deleted_at IS NOT NULL AND EXISTS (SELECT FROM machine_backups WHERE vm_id = vms.id AND removed_at IS NULL);
