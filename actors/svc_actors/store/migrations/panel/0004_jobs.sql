-- Jobs: slow work, its steps and its log.

-- The order in which jobs were begun, which is what turns go by; a clock can be set back.
CREATE SEQUENCE job_turns;

CREATE TABLE jobs (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL,
    title      text NOT NULL,
    class      text NOT NULL CHECK (class IN ('backups', 'migrations', 'system', 'sites')),
    status     text NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    progress   smallint NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    -- No reference: what was done to a site that has been deleted is still shown.
    site_id    uuid,
    owner_id   uuid REFERENCES users ON DELETE SET NULL,
    tenant     uuid NOT NULL GENERATED ALWAYS AS
               (coalesce(owner_id, '00000000-0000-0000-0000-000000000000')) STORED,
    -- What takes turns with the others of its class: a site, else a person.
    flow       uuid NOT NULL GENERATED ALWAYS AS
               (coalesce(site_id, owner_id, '00000000-0000-0000-0000-000000000000')) STORED,
    -- What the work is told. Never a secret.
    parameters jsonb NOT NULL DEFAULT '{}',
    -- code, message, hint.
    error      jsonb,
    last_seq   bigint NOT NULL DEFAULT 0,
    -- Given from job_turns when it is begun.
    turn       bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at   timestamptz,
    CHECK ((status = 'failed') = (error IS NOT NULL)),
    CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL)),
    CHECK (class <> 'sites' OR site_id IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX jobs_created ON jobs (created_at, id);
CREATE INDEX jobs_owner ON jobs (owner_id, created_at, id);
CREATE INDEX jobs_site ON jobs (site_id, created_at, id);
CREATE INDEX jobs_status ON jobs (status, created_at, id);
CREATE INDEX jobs_kind ON jobs (kind, created_at, id);
-- Who is next, and who was served when.
CREATE INDEX jobs_waiting ON jobs (class, flow, id) WHERE status = 'queued';
CREATE INDEX jobs_turns_of_flows ON jobs (class, flow, turn) WHERE turn IS NOT NULL;
CREATE INDEX jobs_turns_of_tenants ON jobs (class, tenant, turn) WHERE turn IS NOT NULL;
-- Never two of one site at the same time, whatever their classes: none finds the site half changed by another.
CREATE UNIQUE INDEX jobs_one_at_a_site ON jobs (site_id) WHERE status = 'running';
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE job_steps (
    job_id     bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    position   integer NOT NULL CHECK (position > 0),
    name       text NOT NULL,
    status     text NOT NULL DEFAULT 'queued'
               CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    error      jsonb,
    started_at timestamptz,
    ended_at   timestamptz,
    PRIMARY KEY (job_id, position),
    CHECK ((status = 'failed') = (error IS NOT NULL))
);

-- seq is 1, 2, 3, ... of each job without a gap, in the order of commits.
CREATE TABLE job_lines (
    job_id  bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    seq     bigint NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The position of the step that it is from.
    step    integer,
    message text NOT NULL,
    PRIMARY KEY (job_id, seq)
);
