-- Backups of sites: a restic repository a site, what it holds, where copies of it go, and when the next one is made.

-- Where copies go, besides the repository on this server. `settings` by kind: the path; host, port, user, path and host key;
-- endpoint, bucket, prefix and access key. The sealed secret is the private key, or the secret key.
CREATE TABLE backup_targets (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text NOT NULL UNIQUE,
    kind          text NOT NULL CHECK (kind IN ('local', 'sftp', 's3')),
    settings      jsonb NOT NULL,
    sealed_secret bytea,
    created_at    timestamptz NOT NULL DEFAULT now(),
    CHECK ((kind = 'local') = (sealed_secret IS NULL))
);

-- A repository outlives its site: its last backup is there for its owner until `kept_until`.
CREATE TABLE backup_repositories (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid UNIQUE REFERENCES sites ON DELETE SET NULL,
    -- Of a site that is gone: whose it was. While there is a site, its owner counts.
    owner_id   uuid REFERENCES users,
    domain     text NOT NULL,
    -- What restic encrypts with.
    sealed_key bytea NOT NULL,
    kept_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (site_id IS NOT NULL OR owner_id IS NOT NULL)
);
CREATE INDEX backup_repositories_owner ON backup_repositories (owner_id);
CREATE INDEX backup_repositories_kept ON backup_repositories (kept_until) WHERE kept_until IS NOT NULL;

CREATE TABLE site_backups (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    repository_id uuid NOT NULL REFERENCES backup_repositories ON DELETE CASCADE,
    cause         text NOT NULL CHECK (cause IN ('manual', 'scheduled', 'final')),
    status        text NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'completed', 'failed', 'deleting')),
    -- The job that makes it.
    job_id        bigint NOT NULL UNIQUE,
    files         bigint,
    bytes         bigint,
    -- By which the repository has grown.
    added_bytes   bigint,
    databases     text[] NOT NULL DEFAULT '{}',
    -- Why it failed.
    error         text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    completed_at  timestamptz,
    CHECK ((status IN ('completed', 'deleting')) = (completed_at IS NOT NULL)),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);
CREATE INDEX site_backups_repository ON site_backups (repository_id, created_at, id);
CREATE INDEX site_backups_created ON site_backups (created_at, id);
CREATE INDEX site_backups_status ON site_backups (status, created_at, id);

-- How the copy of a backup to a target went.
CREATE TABLE backup_copies (
    backup_id uuid NOT NULL REFERENCES site_backups ON DELETE CASCADE,
    target_id uuid NOT NULL REFERENCES backup_targets ON DELETE CASCADE,
    -- NULL: it is there.
    error     text,
    at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (backup_id, target_id)
);
CREATE INDEX backup_copies_target ON backup_copies (target_id);

-- When a site is backed up by itself, in UTC, and which backups are kept. Without a row there is none.
CREATE TABLE backup_schedules (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    frequency    text NOT NULL CHECK (frequency IN ('hourly', 'daily', 'weekly')),
    hour         smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),
    -- 0 is Monday; of a weekly one.
    weekday      smallint NOT NULL CHECK (weekday BETWEEN 0 AND 6),
    keep_last    smallint NOT NULL CHECK (keep_last BETWEEN 1 AND 500),
    keep_daily   smallint NOT NULL CHECK (keep_daily BETWEEN 0 AND 500),
    keep_weekly  smallint NOT NULL CHECK (keep_weekly BETWEEN 0 AND 500),
    keep_monthly smallint NOT NULL CHECK (keep_monthly BETWEEN 0 AND 500),
    next_run_at  timestamptz NOT NULL
);
CREATE INDEX backup_schedules_next ON backup_schedules (next_run_at);
