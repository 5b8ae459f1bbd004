-- Scheduled tasks of sites, and what became of their runs.

CREATE TABLE schedules (
    id                 uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id            uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name               text NOT NULL,
    -- Who runs what `path` names: an interpreter a file of the site, `url` the site itself.
    kind               text NOT NULL CHECK (kind IN ('php', 'python', 'node', 'url')),
    path               text NOT NULL,
    args               text[] NOT NULL DEFAULT '{}',
    -- Five fields of cron(5), as a clock of time_zone shows them.
    cron               text NOT NULL,
    time_zone          text NOT NULL,
    time_limit_seconds integer NOT NULL CHECK (time_limit_seconds > 0),
    enabled            boolean NOT NULL DEFAULT true,
    -- By the clock of the core.
    next_run_at        timestamptz,
    created_at         timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, name),
    CHECK (enabled = (next_run_at IS NOT NULL)),
    CHECK (kind <> 'url' OR args = '{}')
);
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL;

CREATE TABLE schedule_runs (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
    status      text NOT NULL
                CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'timed_out', 'stopped', 'skipped',
                                  'missed', 'interrupted')),
    -- When it was to begin; NULL of one that somebody asked for.
    due_at      timestamptz,
    started_at  timestamptz,
    ended_at    timestamptz,
    -- Of the program; the status of HTTP of a URL.
    exit_status integer,
    -- The end of what it wrote, at most 32 KiB.
    output      text NOT NULL DEFAULT '',
    CHECK ((status IN ('queued', 'running')) = (ended_at IS NULL))
);
-- Never two of one schedule at the same time.
CREATE UNIQUE INDEX schedule_runs_one ON schedule_runs (schedule_id) WHERE ended_at IS NULL;
CREATE INDEX schedule_runs_history ON schedule_runs (schedule_id, id);
