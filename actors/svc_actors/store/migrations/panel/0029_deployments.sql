-- Versions of an application's code that were deployed: each has a folder of its own beneath the site's, `releases/<number>`.
CREATE TABLE app_deployments (
    site_id    uuid NOT NULL REFERENCES site_apps ON DELETE CASCADE,
    -- 1, 2, 3, ... of the site.
    number     integer NOT NULL,
    -- The archive, by its path beneath the site's folder.
    archive    text NOT NULL,
    build      text NOT NULL CHECK (build IN ('none', 'pip')),
    -- Removed: its folder is, or is about to be.
    status     text NOT NULL DEFAULT 'building' CHECK (status IN ('building', 'ready', 'failed', 'removed')),
    problem    text,
    job_id     bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (site_id, number)
);
CREATE UNIQUE INDEX one_deployment_at_a_time ON app_deployments (site_id) WHERE status = 'building';
ALTER TABLE site_apps
    -- Whose code the release that shall run has; NULL: what lies in the site's folder itself.
    ADD deployment integer,
    -- Whose code the release has that visitors come to, or came to last.
    ADD live_deployment integer;
