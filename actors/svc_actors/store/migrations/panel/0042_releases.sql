-- The panel's own releases: what the source offers, and what became of those that were ordered.

-- One row, and none before the first look. `line` is the signed manifest, which is verified again whenever it is used.
CREATE TABLE release_looks (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    looked_at timestamptz,
    tried_at  timestamptz NOT NULL DEFAULT now(),
    error     text,
    line      text
);

-- Of each job that was to install one. `silent`: the sites that answered before, and did not any more.
CREATE TABLE release_runs (
    job_id   bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    version  text NOT NULL,
    release  text NOT NULL,
    before   text NOT NULL,
    state    text NOT NULL CHECK (state IN ('preparing', 'refused', 'trial', 'kept', 'returned')),
    reason   text,
    silent   jsonb NOT NULL DEFAULT '[]',
    ended_at timestamptz
);
