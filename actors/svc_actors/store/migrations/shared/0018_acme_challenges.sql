-- How the names of a certificate are proven, and whether those whom its failing concerns have heard of it.

ALTER TABLE acme_certificates
    ADD COLUMN challenge text NOT NULL DEFAULT 'http-01' CHECK (challenge IN ('http-01', 'dns-01')),
    -- Attempts fail again and again until the cause is mended: told once, and again only after there was a certificate.
    ADD COLUMN told_at   timestamptz;
