-- What the owner of a site keeps from visitors. Patterns are as .gitignore has them.
CREATE TABLE site_denied_paths (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    pattern    text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, pattern)
);

-- What asks for a password: the path and all that is below.
CREATE TABLE site_protected_paths (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id    uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    path       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, path)
);

-- Each protected path has one at least. The verifier is what the web server compares a password with.
CREATE TABLE site_path_logins (
    protected_id uuid NOT NULL REFERENCES site_protected_paths ON DELETE CASCADE,
    login        text NOT NULL,
    verifier     text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (protected_id, login)
);
