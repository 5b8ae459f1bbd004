-- The settings of a target have its kind as well, and are read by the service's own types: a new kind needs no migration.
ALTER TABLE backup_targets DROP CONSTRAINT backup_targets_kind_check;
