-- A token without scopes has its owner's whole authority: NULL. An empty list stays refused, for it would mean nothing.
ALTER TABLE api_tokens ALTER COLUMN scopes DROP NOT NULL;
