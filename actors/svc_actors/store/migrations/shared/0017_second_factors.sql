-- The second step of a sign-in: codes of an authenticator (RFC 6238), and ten codes on paper in its place.

CREATE TABLE second_factors (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    sealed_secret bytea NOT NULL,
    -- NULL while it is being set up: it counts for nothing then.
    confirmed_at  timestamptz,
    -- The step of 30 seconds that the last code was of. No code of it or of one before is taken again.
    last_step     bigint NOT NULL DEFAULT 0
);

-- Marks that nobody computes without the key beside the database. A row goes with the use of its code.
CREATE TABLE recovery_codes (
    user_id uuid NOT NULL REFERENCES second_factors ON DELETE CASCADE,
    mark    bytea NOT NULL,
    PRIMARY KEY (user_id, mark)
);

-- Who has given the right password and not yet a code. Only the SHA-256 of what they carry is known.
CREATE TABLE pending_sign_ins (
    token_hash  bytea PRIMARY KEY,
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    wrong_codes integer NOT NULL DEFAULT 0,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX pending_sign_ins_user ON pending_sign_ins (user_id);
CREATE INDEX pending_sign_ins_expires ON pending_sign_ins (expires_at);
