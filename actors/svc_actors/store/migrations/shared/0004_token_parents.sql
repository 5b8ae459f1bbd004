-- A token that another token made ends with it: who revokes one that leaked must not have to find what was made of it.
-- Deletion of a token looks for its children, hence the index.
ALTER TABLE api_tokens ADD COLUMN made_by uuid REFERENCES api_tokens ON DELETE CASCADE;
CREATE INDEX api_tokens_made_by ON api_tokens (made_by) WHERE made_by IS NOT NULL;
