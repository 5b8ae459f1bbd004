-- The certificate that a site is served with. One by ACME is ordered and renewed by its row of acme_certificates, whose name
-- is 'site:' and the site's id; this is the one that was handed to the web server, whoever made it.
CREATE TABLE site_certificates (
    site_id      uuid PRIMARY KEY REFERENCES sites ON DELETE CASCADE,
    -- Uploaded ones are replaced by the customer alone.
    source       text NOT NULL CHECK (source IN ('acme', 'uploaded')),
    names        text[] NOT NULL,
    issuer       text NOT NULL,
    not_before   timestamptz NOT NULL,
    not_after    timestamptz NOT NULL,
    -- SHA-256 of the certificate, in hex: names the folder of its files.
    fingerprint  text NOT NULL CHECK (fingerprint ~ '^[0-9a-f]{64}$'),
    chain        text NOT NULL,
    sealed_key   bytea NOT NULL,
    installed_at timestamptz NOT NULL DEFAULT now(),
    -- What a handshake with this server showed last.
    checked_at   timestamptz,
    served       boolean
);
