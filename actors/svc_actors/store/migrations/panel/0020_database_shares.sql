-- Whether the engine keeps what is in the database from running by itself, as it does while the site is suspended.
ALTER TABLE databases ADD COLUMN held boolean NOT NULL DEFAULT false;
-- Each user is told anew how many connections it has: those of a site share what the site has.
UPDATE database_users SET wanted = wanted + 1 WHERE status = 'active';
