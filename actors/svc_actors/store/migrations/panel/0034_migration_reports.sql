-- How a site answers here, compared with how it answers at the host that it comes from: the last report of each site.
CREATE TABLE migration_reports (
    site_id    uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    -- The old host, as it was given.
    address    text NOT NULL,
    report     jsonb NOT NULL,
    job_id     bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
