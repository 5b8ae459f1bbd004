-- Copies of WordPress sites to work on. A copy is a site of its own, which says of which site it is one. It goes on saying
-- so when that site is gone: what was a copy is never served without its password.
ALTER TABLE sites ADD staging_of uuid;
CREATE INDEX sites_staging_of ON sites (staging_of) WHERE staging_of IS NOT NULL;

CREATE TABLE stagings (
    site_id    uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    copy_id    uuid NOT NULL UNIQUE REFERENCES sites ON DELETE CASCADE,
    status     text NOT NULL CHECK (status IN ('creating', 'ready', 'refreshing', 'pushing', 'failed')),
    -- Why it has failed, or why the last push was undone.
    reason     text,
    -- What the web server compares the password with.
    verifier   text NOT NULL,
    -- The last job that worked on it.
    job_id     bigint NOT NULL,
    -- What the live site was when it was copied: by table, and by entry of its files.
    copied     jsonb NOT NULL DEFAULT '{}',
    copied_at  timestamptz,
    -- The last push that counts. A push of another job that was interrupted is undone.
    pushed_job bigint,
    pushed_at  timestamptz,
    created_at timestamptz NOT NULL DEFAULT now()
);
