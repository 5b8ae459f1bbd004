-- Console tickets: only the SHA-256 of one is stored. Redeeming deletes the row, so a ticket is used once; the end of the
-- session or the token it was issued to takes its tickets along.

CREATE TABLE console_tickets (
    ticket_hash bytea PRIMARY KEY,
    vm_id       uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    kind        text NOT NULL CHECK (kind IN ('vnc', 'serial')),
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    session_id  uuid REFERENCES sessions ON DELETE CASCADE,
    token_id    uuid REFERENCES api_tokens ON DELETE CASCADE,
    expires_at  timestamptz NOT NULL,
    CHECK ((session_id IS NULL) <> (token_id IS NULL))
);
CREATE INDEX console_tickets_expiry ON console_tickets (expires_at);
