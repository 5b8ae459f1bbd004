-- Until backup_deletions was there, backups that expired kept no record, and targets lost their copies at the next backup.
-- A snapshot of that time without a record expired: the records knew all that was older than the newest of them.
ALTER TABLE backup_repositories
    -- When the newest backup was completed that was recorded then. NULL: every deletion has its record.
    ADD COLUMN known_until timestamptz;
-- A repository with an adopted backup has shown that its records had gone back: of what is unknown there nothing expired.
UPDATE backup_repositories
SET known_until = (SELECT max(completed_at) FROM site_backups
                   WHERE repository_id = backup_repositories.id AND status IN ('completed', 'deleting'))
WHERE NOT EXISTS (SELECT FROM site_backups WHERE repository_id = backup_repositories.id AND cause = 'adopted');
