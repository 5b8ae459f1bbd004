-- People, their sessions and tokens, and the settings of the whole service.

CREATE TABLE users (
    id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    email             text NOT NULL CHECK (email = lower(email)),
    name              text NOT NULL,
    role              text NOT NULL CHECK (role IN ('administrator', 'staff', 'customer')),
    password_hash     text,
    phone             text NOT NULL DEFAULT '',
    company           text NOT NULL DEFAULT '',
    note              text NOT NULL DEFAULT '',
    suspended_at      timestamptz,
    suspension_reason text,
    created_at        timestamptz NOT NULL DEFAULT now(),
    last_sign_in_at   timestamptz,
    UNIQUE (email),
    CHECK ((suspended_at IS NULL) = (suspension_reason IS NULL))
);

CREATE TABLE impersonations (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    operator_id   uuid NOT NULL REFERENCES users,
    customer_id   uuid NOT NULL REFERENCES users,
    reason        text NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz NOT NULL,
    ended_at      timestamptz,
    -- When the operator's own session, to which they return, would have ended.
    return_until  timestamptz NOT NULL
);
CREATE INDEX impersonations_customer ON impersonations (customer_id, started_at DESC);

-- The cookie's value is never stored: only its SHA-256.
CREATE TABLE sessions (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    token_hash       bytea NOT NULL UNIQUE,
    user_id          uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    impersonation_id uuid REFERENCES impersonations,
    address          text,
    user_agent       text,
    created_at       timestamptz NOT NULL DEFAULT now(),
    seen_at          timestamptz NOT NULL DEFAULT now(),
    expires_at       timestamptz NOT NULL
);
CREATE INDEX sessions_user ON sessions (user_id);

CREATE TABLE api_tokens (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    token_hash   bytea NOT NULL UNIQUE,
    last_four    text NOT NULL,
    user_id      uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    name         text NOT NULL,
    scopes       text[] NOT NULL CHECK (cardinality(scopes) > 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX api_tokens_user ON api_tokens (user_id);

-- Failed sign-ins, counted by account, by address and by both together, for the throttle. The account is hashed: a mistyped
-- address may be a password. A row is forgotten after `forget_at`.
CREATE TABLE sign_in_attempts (
    subject       text PRIMARY KEY,
    failures      integer NOT NULL,
    blocked_until timestamptz NOT NULL,
    forget_at     timestamptz NOT NULL
);
CREATE INDEX sign_in_attempts_forget ON sign_in_attempts (forget_at);

-- One row a setting; values are JSON. Unset means the default in code.
CREATE TABLE settings (
    name       text PRIMARY KEY,
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The one-time setup token, hashed, until the first administrator exists.
CREATE TABLE setup_tokens (
    token_hash bytea PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    used_at    timestamptz
);

-- A claimed key and, once the work has ended, the answer (sealed: it may hold a one-time password). While the work goes on
-- its claimant renews the lease; a claim without an answer whose lease has run out belongs to a process that died.
CREATE TABLE idempotency_keys (
    owner        text NOT NULL,
    key          text NOT NULL,
    operation    text NOT NULL,
    fingerprint  bytea NOT NULL,
    claim        uuid NOT NULL,
    leased_until timestamptz NOT NULL,
    answer       bytea,
    created_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, key)
);
CREATE INDEX idempotency_keys_created ON idempotency_keys (created_at);
