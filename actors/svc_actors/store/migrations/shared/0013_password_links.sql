-- Links by which people set their password: an invitation's, or one that was asked for (docs/mail.md).

-- A link is used once: its row goes with its use. Only the SHA-256 of what it carries is known.
CREATE TABLE password_links (
    token_hash bytea PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    -- Where it was sent to. It opens nothing once the person has another address.
    email      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX password_links_user ON password_links (user_id);
CREATE INDEX password_links_expires ON password_links (expires_at);

-- That a link was asked for, whether or not the address is somebody's: that is looked up later, so that asking tells nobody.
-- The address goes then; its hash and the asker's place are kept for an hour, to bound how often.
CREATE TABLE password_asks (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    email    text,
    account  text NOT NULL,
    place    text NOT NULL,
    asked_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX password_asks_waiting ON password_asks (id) WHERE email IS NOT NULL;
CREATE INDEX password_asks_account ON password_asks (account, asked_at);
CREATE INDEX password_asks_place ON password_asks (place, asked_at);
CREATE INDEX password_asks_asked ON password_asks (asked_at);
