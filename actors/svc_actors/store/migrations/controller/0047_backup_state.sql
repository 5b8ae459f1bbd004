-- The SHA-256 of what a machine's firmware and TPM kept in a copy, or `none`; NULL of copies whose agent did not say it.

ALTER TABLE machine_backups ADD COLUMN state text;
