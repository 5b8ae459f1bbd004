-- Copies that are not kept any more and lie at another node's target than the machine's: that node is to remove them.
ALTER TABLE machine_backups ADD COLUMN superseded_at timestamptz;
CREATE INDEX machine_backups_superseded ON machine_backups (vm_id, node_id)
WHERE superseded_at IS NOT NULL AND removed_at IS NULL;
-- All of a machine that has been deleted, removed copies as well: each of these nodes has something at its target.
CREATE INDEX machine_backups_of_machine ON machine_backups (vm_id, node_id);
