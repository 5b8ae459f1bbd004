-- The data of backups is read in shares, a share a week, at each place that holds a repository.
CREATE TABLE backup_data_checks (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    repository_id uuid NOT NULL REFERENCES backup_repositories ON DELETE CASCADE,
    -- NULL: the repository on this server.
    target_id     uuid REFERENCES backup_targets ON DELETE CASCADE,
    -- The share of the next round.
    share         smallint NOT NULL DEFAULT 1 CHECK (share BETWEEN 1 AND 4),
    -- Into how many parts a running round cuts the repository, and those that it has not read yet. NULL: no round runs.
    parts         smallint CHECK (parts BETWEEN 4 AND 256),
    unread        smallint[] NOT NULL DEFAULT '{}',
    -- Shares of the running round in which damage was found.
    found         smallint[] NOT NULL DEFAULT '{}',
    -- Shares whose data was damaged when it was last read, and the packs that restic named.
    damaged       smallint[] NOT NULL DEFAULT '{}',
    report        text,
    -- When the last round ended, and why the last attempt could not read.
    read_at       timestamptz,
    error         text,
    -- The job that reads a part now.
    job_id        bigint UNIQUE,
    next_run_at   timestamptz NOT NULL,
    CHECK ((parts IS NULL) = (unread = '{}'))
);
CREATE UNIQUE INDEX backup_data_checks_place ON backup_data_checks (repository_id, coalesce(target_id, repository_id));
CREATE INDEX backup_data_checks_target ON backup_data_checks (target_id);
CREATE INDEX backup_data_checks_next ON backup_data_checks (next_run_at);
