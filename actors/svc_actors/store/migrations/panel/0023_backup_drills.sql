-- Drills: backups restored beside their sites and compared, to know that they can be.

CREATE TABLE backup_drills (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    backup_id  uuid NOT NULL,
    domain     text NOT NULL,
    cause      text NOT NULL CHECK (cause IN ('manual', 'scheduled')),
    status     text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'succeeded', 'failed')),
    job_id     bigint NOT NULL UNIQUE,
    -- Entries of the site's tree, and databases, that are what was backed up.
    entries    bigint NOT NULL DEFAULT 0,
    databases  integer NOT NULL DEFAULT 0,
    -- Databases made for it that are there yet: the engine and the name.
    scratch    text[] NOT NULL DEFAULT '{}',
    error      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at   timestamptz,
    CHECK ((status = 'pending') = (ended_at IS NULL)),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);
-- Never two at a time.
CREATE UNIQUE INDEX backup_drills_one ON backup_drills ((true)) WHERE status = 'pending';
CREATE INDEX backup_drills_created ON backup_drills (created_at, id);

-- When the next is made by itself. One row.
CREATE TABLE backup_drill_plan (
    only_one    boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    frequency   text NOT NULL DEFAULT 'weekly' CHECK (frequency IN ('off', 'weekly')),
    next_run_at timestamptz NOT NULL DEFAULT now() + interval '7 days'
);
INSERT INTO backup_drill_plan DEFAULT VALUES;
