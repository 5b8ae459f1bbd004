-- Backups that were deleted: their snapshots are removed here and at targets, also when that failed at first. Snapshots
-- of complete backups that are in neither table are somebody's data, and stay.
CREATE TABLE backup_deletions (
    repository_id uuid NOT NULL REFERENCES backup_repositories ON DELETE CASCADE,
    backup_id     uuid NOT NULL,
    deleted_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repository_id, backup_id)
);
CREATE INDEX backup_deletions_at ON backup_deletions (deleted_at);

ALTER TABLE site_backups
    -- NULL: it was found complete in its repository, and is of no job of this database.
    ALTER COLUMN job_id DROP NOT NULL,
    DROP CONSTRAINT site_backups_cause_check,
    ADD CONSTRAINT site_backups_cause_check CHECK (cause IN ('manual', 'scheduled', 'final', 'adopted')),
    -- How many files the backup before had, where this one has lost more than nine in ten of them. Such a backup takes
    -- no place of others in what is kept.
    ADD COLUMN files_before bigint;
