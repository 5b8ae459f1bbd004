-- Who may sign in to a site's files by SFTP: as s<number>-<name>, with the user id of the site.
CREATE TABLE sftp_accounts (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    site_id       uuid NOT NULL REFERENCES sites ON DELETE CASCADE,
    name          text NOT NULL,
    -- Beneath the site's home; the home itself, where it is empty.
    folder        text NOT NULL,
    -- As in shadow(5); without one only keys open it.
    password_hash text,
    -- Lines of authorized_keys, without options.
    keys          text[] NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (site_id, name),
    CHECK (password_hash IS NOT NULL OR cardinality(keys) > 0)
);
