-- Access accounts with a shell: off unless the plan of a site's owner, or an administrator for the site, allows them.
ALTER TABLE sftp_accounts ADD COLUMN kind text NOT NULL DEFAULT 'sftp' CHECK (kind IN ('sftp', 'shell'));
ALTER TABLE hosting_plans ADD COLUMN shell boolean NOT NULL DEFAULT false;
-- As an administrator has said of this site; as the plan says, where NULL.
ALTER TABLE sites ADD COLUMN shell boolean;
