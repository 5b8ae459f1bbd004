-- Sites of other hosts: an archive that is uploaded, or what is fetched by SSH, what was found in it, and what became of it.
CREATE TABLE imports (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- Its folder and its account are called by it: imports/i<number>.
    number     bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    owner_id   uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    source     text NOT NULL CHECK (source IN ('upload', 'ssh')),
    name       text NOT NULL,
    status     text NOT NULL CHECK (status IN ('uploading', 'analysing', 'ready', 'applying', 'applied', 'failed')),
    problem    text,
    -- Of the archive, and which bytes of it have come.
    size       bigint NOT NULL CHECK (size >= 0),
    received   int8multirange NOT NULL DEFAULT '{}',
    sha256     text,
    -- What is in it (svc_actors.host.archives.model); NULL before it was read.
    found      jsonb,
    -- How it was applied last: whose it becomes, names instead of others, items that are left out.
    choices    jsonb,
    -- What became of its items.
    outcome    jsonb,
    job_id     bigint,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When something of it changed last. One that nobody continues is removed with its archive.
    touched_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX imports_owner ON imports (owner_id, created_at DESC, id);
CREATE INDEX imports_touched ON imports (touched_at);
-- The sites that an import has made: applied again, it goes on with them, and makes none twice.
CREATE TABLE import_sites (
    import_id uuid NOT NULL REFERENCES imports ON DELETE CASCADE,
    -- As the archive calls it.
    domain    text NOT NULL,
    site_id   uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    PRIMARY KEY (import_id, domain)
);
CREATE INDEX import_sites_site ON import_sites (site_id);
