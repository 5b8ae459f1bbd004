-- How often new sites of the plan's customers are backed up; NULL: as the server's settings say.
ALTER TABLE hosting_plans
    ADD COLUMN default_backups text CHECK (default_backups IN ('off', 'hourly', 'daily', 'weekly'));
