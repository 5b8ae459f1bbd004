-- Recovery: manifests of the server at its backup targets, and a server that is being brought back from one.

-- What opens the manifests. The recovery key itself is nowhere: `wrapped` opens with it alone, `sealed_key` with the key of
-- this server, which writes with it. One row.
CREATE TABLE recovery_key (
    one         boolean PRIMARY KEY DEFAULT true CHECK (one),
    fingerprint text NOT NULL,
    wrapped     jsonb NOT NULL,
    sealed_key  bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

-- The manifest of each target: the last that is there, and why a later one is not.
CREATE TABLE recovery_manifests (
    target_id   uuid PRIMARY KEY REFERENCES backup_targets ON DELETE CASCADE,
    -- What the server had changed when it was written, and with which key.
    state       text,
    written_at  timestamptz,
    bytes       bigint,
    error       text,
    tried_at    timestamptz NOT NULL,
    CHECK ((state IS NULL) = (written_at IS NULL))
);

-- The manifest that this server is to become. One row, and none once it has become it.
CREATE TABLE recovery_orders (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    target_id     uuid NOT NULL,
    snapshot      text NOT NULL,
    sealed_secret bytea NOT NULL,
    ordered_at    timestamptz NOT NULL DEFAULT now()
);

-- A server that was recovered: from what, and what was put differently than it was. One row.
CREATE TABLE recovery_source (
    one          boolean PRIMARY KEY DEFAULT true CHECK (one),
    target_id    uuid NOT NULL,
    hostname     text NOT NULL,
    taken_at     timestamptz NOT NULL,
    notes        text[] NOT NULL,
    recovered_at timestamptz NOT NULL DEFAULT now(),
    told         boolean NOT NULL DEFAULT false
);

-- Its sites: whether each has its files and databases again.
CREATE TABLE recovery_sites (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    status       text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'recovered', 'failed')),
    backup_at    timestamptz,
    error        text,
    recovered_at timestamptz,
    CHECK ((status = 'failed') = (error IS NOT NULL)),
    CHECK ((status = 'recovered') = (recovered_at IS NOT NULL))
);
