-- Links that sign a browser in as a customer, once. Only the SHA-256 of what one carries is known.
CREATE TABLE sign_in_links (
    token_hash bytea PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    -- For people to read, in the audit of the session that it begins.
    made_by    text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX sign_in_links_user ON sign_in_links (user_id);
