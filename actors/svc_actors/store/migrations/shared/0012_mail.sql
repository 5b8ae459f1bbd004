-- Mail that waits to be delivered, and what became of it (docs/mail.md). A row is written in the transaction of what it tells of.

CREATE TABLE mails (
    id          uuid PRIMARY KEY,
    -- The same at every attempt, so that whoever gets a mail twice sees that it is one.
    message_id  text NOT NULL,
    kind        text NOT NULL,
    user_id     uuid REFERENCES users ON DELETE SET NULL,
    recipient   text NOT NULL,
    subject     text NOT NULL,
    -- The whole message, sealed, for it may hold a link that opens an account. Gone as soon as it was sent.
    content     bytea,
    -- Of no use once its deadline has passed: a link in it has run out.
    perishable  boolean NOT NULL,
    state       text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'sent', 'failed')),
    attempts    integer NOT NULL DEFAULT 0,
    error       text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    -- When it is tried next.
    attempt_at  timestamptz NOT NULL DEFAULT now(),
    deadline_at timestamptz NOT NULL,
    ended_at    timestamptz,
    CHECK ((state = 'queued') = (ended_at IS NULL)),
    CHECK (state <> 'queued' OR content IS NOT NULL),
    CHECK (state <> 'sent' OR content IS NULL)
);
CREATE INDEX mails_due ON mails (attempt_at) WHERE state = 'queued';
CREATE INDEX mails_perished ON mails (deadline_at) WHERE state = 'failed' AND perishable AND content IS NOT NULL;
CREATE INDEX mails_created ON mails (created_at, id);
CREATE INDEX mails_ended ON mails (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX mails_of_user ON mails (user_id, kind, created_at) WHERE user_id IS NOT NULL;
