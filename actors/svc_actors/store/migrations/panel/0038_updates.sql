-- Updates of the server's packages: who orders them, when the lists were fetched last, and what jobs have done.

-- One row, and none while it is as it began.
CREATE TABLE update_settings (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    mode text NOT NULL CHECK (mode IN ('off', 'manual', 'automatic'))
);

-- One row, and none before the first look.
CREATE TABLE update_looks (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    looked_at timestamptz,
    tried_at  timestamptz NOT NULL DEFAULT now(),
    error     text
);

-- Of each job: what it was to install, what of it was, and how sites answered (the status of HTTP, by domain).
CREATE TABLE update_runs (
    job_id    bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    planned   jsonb NOT NULL,
    installed jsonb NOT NULL DEFAULT '[]',
    before    jsonb NOT NULL DEFAULT '{}',
    silent    jsonb NOT NULL DEFAULT '[]'
);
