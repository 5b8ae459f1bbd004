-- Names that the certificate does without, by name: why, what they resolved to, and how often the authority refused them.
ALTER TABLE acme_certificates
    ADD COLUMN left_out      jsonb NOT NULL DEFAULT '{}',
    -- Somebody asked for a new certificate: the one in use does not do.
    ADD COLUMN renewal_asked boolean NOT NULL DEFAULT false;
