-- Databases of sites and their users. The rows are the truth: what an engine lost, or has too much, is mended from them.

CREATE TABLE databases (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- A site goes when its databases have gone.
    site_id    uuid NOT NULL REFERENCES sites,
    engine     text NOT NULL CHECK (engine IN ('mariadb', 'postgresql')),
    -- In the engine: s<number of the site>_<what the customer calls it>.
    name       text NOT NULL,
    status     text NOT NULL DEFAULT 'creating' CHECK (status IN ('creating', 'active', 'deleting')),
    -- Why the engine did not do what the status says, in its own words. It is asked again.
    problem    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (engine, name)
);
CREATE INDEX databases_site ON databases (site_id);
CREATE INDEX databases_under_way ON databases (site_id) WHERE status <> 'active';

CREATE TABLE database_users (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites,
    engine     text NOT NULL CHECK (engine IN ('mariadb', 'postgresql')),
    name       text NOT NULL,
    -- What the engine checks the password with; the password itself nobody keeps.
    verifier   text NOT NULL,
    status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'deleting')),
    -- Each change of the user, its password or its grants raises it; `applied` is the one that the engine has.
    wanted     integer NOT NULL DEFAULT 1,
    applied    integer NOT NULL DEFAULT 0,
    problem    text,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (engine, name)
);
CREATE INDEX database_users_site ON database_users (site_id);
CREATE INDEX database_users_under_way ON database_users (site_id) WHERE status <> 'active' OR applied < wanted;

CREATE TABLE database_grants (
    user_id     uuid NOT NULL REFERENCES database_users ON DELETE CASCADE,
    database_id uuid NOT NULL REFERENCES databases ON DELETE CASCADE,
    access      text NOT NULL CHECK (access IN ('full', 'read_only')),
    PRIMARY KEY (user_id, database_id)
);
CREATE INDEX database_grants_database ON database_grants (database_id);

-- Exports that wait to be downloaded; the file of one is called by its id. One whose job failed is removed.
CREATE TABLE database_exports (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    database_id uuid NOT NULL REFERENCES databases ON DELETE CASCADE,
    status      text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'ready')),
    size        bigint,
    -- Of the whole file, in hex.
    sha256      text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    CHECK ((status = 'ready') = (size IS NOT NULL AND sha256 IS NOT NULL))
);
CREATE INDEX database_exports_database ON database_exports (database_id, created_at);
CREATE INDEX database_exports_expiry ON database_exports (expires_at);
