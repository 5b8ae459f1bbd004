-- When the authority is asked next when it would have the certificate renewed (RFC 9773).
ALTER TABLE acme_certificates ADD COLUMN renewal_info_at timestamptz NOT NULL DEFAULT now();
