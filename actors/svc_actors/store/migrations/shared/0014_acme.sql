-- Certificates that a service gets from an authority by ACME (RFC 8555) and renews by itself.

-- The account with each authority, by the URL of its directory.
CREATE TABLE acme_accounts (
    directory   text PRIMARY KEY,
    sealed_key  bytea NOT NULL,
    contact     text NOT NULL,
    -- Where the authority keeps it; NULL until the authority has said so, and when it has to be told of another contact.
    url         text
);

CREATE TABLE acme_certificates (
    -- What it is for.
    name        text PRIMARY KEY,
    directory   text NOT NULL,
    names       text[] NOT NULL,

    -- The certificate that is shown, with its chain (PEM).
    chain       text,
    sealed_key  bytea,
    issuer      text,
    not_before  timestamptz,
    not_after   timestamptz,

    -- The order under way. Its key is there before the authority is asked for anything, so that whatever the authority
    -- makes of it can be used, also by the process after this one.
    order_key   bytea,
    -- When this attempt at it began, or is to begin.
    order_began timestamptz,
    order_url   text,

    -- When something is to be done next: the renewal, or another attempt.
    due_at      timestamptz NOT NULL DEFAULT now(),
    failures    integer NOT NULL DEFAULT 0,
    last_error  text,
    failed_at   timestamptz,

    CHECK (num_nulls(chain, sealed_key, issuer, not_before, not_after) IN (0, 5)),
    CHECK (num_nulls(order_key, order_began) IN (0, 2)),
    CHECK (order_url IS NULL OR order_key IS NOT NULL)
);
