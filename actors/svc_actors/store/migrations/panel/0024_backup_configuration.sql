-- What a backup holds of a site's configuration, without the key of its certificate: what a restoration would change is shown
-- from it. NULL of backups of earlier releases.
ALTER TABLE site_backups ADD COLUMN configuration jsonb;
