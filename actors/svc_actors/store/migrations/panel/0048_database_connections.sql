-- The users of a customer share what a customer has of an engine's connections, and no longer what each site has alone:
-- the engines are told so of all users.
UPDATE database_users SET wanted = wanted + 1 WHERE status = 'active';
