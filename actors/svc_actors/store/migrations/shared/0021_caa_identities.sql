-- The names of an account's authority in CAA records, as its directory says; empty until it was read.
ALTER TABLE acme_accounts ADD COLUMN caa_identities text[] NOT NULL DEFAULT '{}';
UPDATE acme_accounts SET caa_identities = '{letsencrypt.org}' WHERE directory LIKE 'https://acme-%.api.letsencrypt.org/%';
