-- Each user is told anew how many connections it has: those of a site share what the site has.
UPDATE database_users SET wanted = wanted + 1 WHERE status = 'active';
