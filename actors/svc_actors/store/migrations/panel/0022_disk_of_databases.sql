-- What a site takes on the disk is its files, its databases and its exports: `bytes` is all of it, these are parts of it.
ALTER TABLE site_disk_use
    ADD COLUMN database_bytes bigint NOT NULL DEFAULT 0 CHECK (database_bytes >= 0),
    ADD COLUMN export_bytes bigint NOT NULL DEFAULT 0 CHECK (export_bytes >= 0);
