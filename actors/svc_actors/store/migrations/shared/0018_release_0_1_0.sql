-- The tables of every service, as of release 0.1.0. Stands for the migrations 0001 to 0018 (svc_actors/store/migrate.py).

------------------------------------------------------------------------------------------------------------------------
-- Texts that are found by an index

-- In PL/pgSQL, where an index is made of them: their plan is kept for a connection. PostgreSQL parses the body of a function
-- in SQL for every statement that writes to an index of it, to see whether it can be inlined, which these cannot; that was
-- an eighth of the processor time of a machine's creation.

-- Every piece of one to three characters of the texts, in lower case. A text that contains another has all of its pieces, so
-- a GIN index of them finds what contains a text; for tables of some hundred thousand rows that change seldom. (The
-- extension pg_trgm would do for three characters and more, but the embedded server does not have it.)
CREATE FUNCTION text_pieces(texts text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN (
        SELECT coalesce(array_agg(DISTINCT substr(given, place, size)), '{}')
        FROM (SELECT DISTINCT lower(given) AS given FROM unnest(texts) given WHERE given IS NOT NULL) texts,
             generate_series(1, 3) size, generate_series(1, length(given) - size + 1) place
    );
END
$$;

-- The longest pieces of a text to search for: they select most.
CREATE FUNCTION wanted_pieces(wanted text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(DISTINCT substr(lower(wanted), place, least(3, length(lower(wanted)))))
    FROM generate_series(1, greatest(1, length(lower(wanted)) - 2)) place
$$;

-- The words of the texts, runs of letters and digits in lower case: for histories, which grow by the million. A GIN index of
-- them finds rows by the first letters of their words.
CREATE FUNCTION text_words(texts text[]) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    text_of_all text := lower(array_to_string(texts, ' '));
BEGIN
    IF length(text_of_all) <= 100 THEN
        -- No word is longer than what is kept of one, so that no query is needed.
        RETURN array_to_tsvector(array_remove(regexp_split_to_array(text_of_all, '[^[:alnum:]]+'), ''));
    END IF;
    RETURN (
        SELECT array_to_tsvector(coalesce(array_agg(DISTINCT left(word, 100)), '{}'))
        FROM regexp_split_to_table(text_of_all, '[^[:alnum:]]+') word WHERE word <> ''
    );
END
$$;

-- Matches rows in which each of the given words begins a word; no row if no word is given.
CREATE FUNCTION wanted_words(wanted text) RETURNS tsquery LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT string_agg(quote_literal(left(word, 100)) || ':*', ' & ')::tsquery
    FROM regexp_split_to_table(lower(wanted), '[^[:alnum:]]+') word WHERE word <> ''
$$;

------------------------------------------------------------------------------------------------------------------------
-- Numbers of rows, kept instead of counted

-- How many rows of a list there are, by what it is asked for: `scope` is a node or a project, `words` a status and the like.
-- A transaction that changes a number leaves the change in list_changes, where no two transactions meet; from time to time
-- they are added to list_counts (svc_actors/store/counts.py). The number is the sum of both. Each list has a view of the
-- same by counting, which corrects its numbers once a day.
CREATE TABLE list_counts (
    list   text NOT NULL,
    scope  uuid,
    words  text[] NOT NULL,
    number bigint NOT NULL,
    CONSTRAINT list_counts_once UNIQUE NULLS NOT DISTINCT (list, scope, words)
);
CREATE TABLE list_changes (
    list   text NOT NULL,
    scope  uuid,
    words  text[] NOT NULL,
    number bigint NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_analyze_threshold = 1000000);

CREATE VIEW list_numbers AS
    SELECT list, scope, words, number FROM list_counts UNION ALL SELECT list, scope, words, number FROM list_changes;

------------------------------------------------------------------------------------------------------------------------
-- Events

-- A transaction that changes something leaves its events in event_inbox; a single sequencer moves committed ones into event,
-- where positions are contiguous and in commit order. See svc_actors/store/events.py.
CREATE TABLE event_inbox (
    id                  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at                  timestamptz NOT NULL,
    kind                text NOT NULL,
    subject             text,
    project_id          uuid,
    node_id             uuid,
    administrators_only boolean NOT NULL,
    payload             jsonb NOT NULL
);
CREATE TABLE event (
    position            bigint PRIMARY KEY,
    at                  timestamptz NOT NULL,
    kind                text NOT NULL,
    subject             text,
    project_id          uuid,
    node_id             uuid,
    administrators_only boolean NOT NULL,
    payload             jsonb NOT NULL
);

------------------------------------------------------------------------------------------------------------------------
-- Audit

-- Who did what. Rows are added and never changed: not by the service's own role either. Entries are in the order of their
-- numbers; `at` is the beginning of their transaction, and says nothing else.
CREATE TABLE audit (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at               timestamptz NOT NULL DEFAULT now(),
    actor_id         uuid,
    actor            text NOT NULL,
    role             text NOT NULL,
    via              text NOT NULL,
    impersonation_id uuid,
    impersonator_id  uuid,
    token_id         uuid,
    address          text,
    request_id       text NOT NULL,
    operation        text NOT NULL,
    target_kind      text NOT NULL,
    target_id        text,
    target_name      text,
    project_id       uuid,
    outcome          text NOT NULL,
    error_code       text,
    details          jsonb
);
CREATE INDEX audit_by_actor ON audit (actor_id, id);
CREATE INDEX audit_by_project ON audit (project_id, id);
CREATE INDEX audit_by_target ON audit (target_kind, target_id, id);
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_operation ON audit (operation, id);
CREATE INDEX audit_words ON audit USING gin (text_words(ARRAY[actor, operation, target_name, target_id]))
    WITH (fastupdate = off);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;

-- Audit rows leave the table only when they are old and were written to a file before. The service's role may neither
-- update nor delete them: it may call one function, which checks itself whether a row may go.

-- Rows first_id to last_id were written to a file, which was on disk before this row was.
CREATE TABLE audit_exports (
    first_id    bigint PRIMARY KEY,
    last_id     bigint NOT NULL CHECK (last_id >= first_id),
    rows        bigint NOT NULL,
    file        text NOT NULL,
    sha256      text NOT NULL,
    exported_at timestamptz NOT NULL DEFAULT now()
);
CREATE TRIGGER audit_exports_stay BEFORE UPDATE OR DELETE ON audit_exports
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- The floor that no setting goes below: an attacker who controls the service cannot remove the traces of the last month.
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < now() - interval '30 days' AND OLD.id <= (
        SELECT last_id FROM audit_exports WHERE first_id <= OLD.id ORDER BY first_id DESC LIMIT 1
    ) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'rows of audit are never changed, and removed only when they are exported and 30 days old'
        USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_rows_stay BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_stays BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay;
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays;
REVOKE UPDATE, TRUNCATE ON audit FROM PUBLIC, CURRENT_USER;

-- Remove those of the rows first_row to last_row that are older than `age` and exported; returns how many. A range of ids,
-- so that one batch does not read again the places that the last one has emptied.
CREATE FUNCTION remove_exported_audit(age interval, first_row bigint, last_row bigint) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM audit USING audit_exports AS exported
    WHERE exported.first_id <= last_row AND exported.last_id >= first_row
      AND audit.id BETWEEN greatest(first_row, exported.first_id) AND least(last_row, exported.last_id)
      AND audit.at < now() - greatest(age, interval '30 days');
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
REVOKE EXECUTE ON FUNCTION remove_exported_audit(interval, bigint, bigint) FROM PUBLIC;

-- Entries are counted by blocks of 16,384 numbers, so that a page far from both ends of the list is searched from the
-- beginning of its block (svc/registry/paging.py). The sum of the blocks is the number of all.
CREATE VIEW audit_numbers AS
    SELECT 'audit' AS list, NULL::uuid AS scope, ARRAY[(id >> 14)::text] AS words, count(*) AS number
    FROM audit GROUP BY id >> 14;

CREATE FUNCTION count_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_changes
        SELECT 'audit', NULL, ARRAY[(id >> 14)::text], CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM changed GROUP BY id >> 14;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_counted AFTER INSERT ON audit REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_audit();
CREATE TRIGGER audit_discounted AFTER DELETE ON audit REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_audit();

------------------------------------------------------------------------------------------------------------------------
-- People, and how they sign in

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
    -- The least severity of the alerts that an operator gets by mail. Customers get none.
    alert_mail        text NOT NULL DEFAULT 'critical' CHECK (alert_mail IN ('none', 'critical', 'warning')),
    UNIQUE (email),
    CHECK ((suspended_at IS NULL) = (suspension_reason IS NULL))
);
CREATE INDEX users_pieces ON users USING gin (text_pieces(ARRAY[email, name, company, phone])) WITH (fastupdate = off);
CREATE INDEX users_name ON users (name, id);
CREATE INDEX users_company ON users (company, id);
CREATE INDEX users_created ON users (created_at, id);
CREATE INDEX users_role ON users (role, email);
CREATE INDEX users_suspended ON users (email) WHERE suspended_at IS NOT NULL;

CREATE TABLE impersonations (
    id           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    operator_id  uuid NOT NULL REFERENCES users,
    customer_id  uuid NOT NULL REFERENCES users,
    reason       text NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    ended_at     timestamptz,
    -- When the operator's own session, to which they return, would have ended.
    return_until timestamptz NOT NULL
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
    -- NULL: its owner's whole authority. An empty list is refused, for it would mean nothing.
    scopes       text[] CHECK (cardinality(scopes) > 0),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    -- A token that another token made ends with it: revoking a leaked one revokes what was made with it.
    made_by      uuid REFERENCES api_tokens ON DELETE CASCADE
);
CREATE INDEX api_tokens_user ON api_tokens (user_id);
-- For the deletion of a token, which looks for its children.
CREATE INDEX api_tokens_made_by ON api_tokens (made_by) WHERE made_by IS NOT NULL;

-- Failed sign-ins, counted by account, by address and by both together, for the throttle. The account is hashed: a mistyped
-- address may be a password. A row is forgotten after `forget_at`.
CREATE TABLE sign_in_attempts (
    subject       text PRIMARY KEY,
    failures      integer NOT NULL,
    blocked_until timestamptz NOT NULL,
    forget_at     timestamptz NOT NULL
);
CREATE INDEX sign_in_attempts_forget ON sign_in_attempts (forget_at);

-- From where each account was signed in to: from there the throttle allows tries although strangers have used up the
-- account's or the address's. `account` is the hash of its e-mail address, as in sign_in_attempts. `mark` is 'address:' and
-- the address (of IPv6 its /64), or 'browser:' and the SHA-256 of the cookie that a browser was given.
CREATE TABLE familiar_sign_ins (
    account text NOT NULL,
    mark    text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (account, mark)
);
CREATE INDEX familiar_sign_ins_seen ON familiar_sign_ins (seen_at);

-- The second step of a sign-in: codes of an authenticator (RFC 6238), and ten codes on paper instead of it.
CREATE TABLE second_factors (
    user_id       uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
    sealed_secret bytea NOT NULL,
    -- NULL while it is being set up: it counts for nothing then.
    confirmed_at  timestamptz,
    -- The step of 30 seconds that the last code was of. No code of it or of an earlier one is accepted again.
    last_step     bigint NOT NULL DEFAULT 0
);
-- Marks that nobody computes without the key, which is outside of the database. A row goes with the use of its code.
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

-- Links by which people set their password: an invitation's, or one that was asked for (docs/mail.md). A link is used once:
-- its row goes with its use. Only the SHA-256 of what it carries is known.
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

-- That a link was asked for, whether or not an account has the address: that is looked up later, so that the answer reveals
-- nothing. The address goes then; its hash and the asker's place are kept for an hour, to bound how often.
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

-- The one-time setup token, hashed, until the first administrator exists.
CREATE TABLE setup_tokens (
    token_hash bytea PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    used_at    timestamptz
);

------------------------------------------------------------------------------------------------------------------------
-- Settings and repeated requests

-- One row a setting; values are JSON. Unset means the default in code.
CREATE TABLE settings (
    name       text PRIMARY KEY,
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
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

------------------------------------------------------------------------------------------------------------------------
-- Alerts and mail

-- What an operator should see, until it is over.
CREATE TABLE alerts (
    id                       uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- What the alert is about: an open alert with the same key is raised once.
    key                      text NOT NULL,
    severity                 text NOT NULL CHECK (severity IN ('warning', 'critical')),
    message                  text NOT NULL,
    resource_kind            text,
    resource_id              text,
    opened_at                timestamptz NOT NULL DEFAULT now(),
    acknowledged_at          timestamptz,
    acknowledged_by          uuid REFERENCES users,
    closed_at                timestamptz,
    -- An alert about a customer's machine is shown to them as well, in words that name nothing of the provider's. Their
    -- acknowledgement is not an operator's.
    project_id               uuid,
    told                     text,
    customer_acknowledged_at timestamptz,
    customer_acknowledged_by uuid REFERENCES users,
    CHECK ((project_id IS NULL) = (told IS NULL))
);
CREATE UNIQUE INDEX alerts_open ON alerts (key) WHERE closed_at IS NULL;
CREATE INDEX alerts_project ON alerts (project_id) WHERE closed_at IS NULL;
CREATE INDEX alerts_opened ON alerts (opened_at, id) WHERE closed_at IS NULL;
-- A resource that is removed takes its open alerts with it.
CREATE INDEX alerts_about ON alerts (resource_kind, resource_id) WHERE closed_at IS NULL;

-- Which alerts an operator got by mail, as how severe. The row goes when they got the mail that the alert has closed.
CREATE TABLE alerts_mailed (
    user_id  uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    alert_id uuid NOT NULL REFERENCES alerts ON DELETE CASCADE,
    severity text NOT NULL,
    PRIMARY KEY (user_id, alert_id)
);
CREATE INDEX alerts_mailed_alert ON alerts_mailed (alert_id);

-- Mail that waits to be delivered, and what became of it (docs/mail.md). A row is written in the transaction that it reports.
CREATE TABLE mails (
    id          uuid PRIMARY KEY,
    -- The same at every attempt, so that a recipient who gets a mail twice sees that it is one.
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

------------------------------------------------------------------------------------------------------------------------
-- Certificates that a service gets from an authority by ACME (RFC 8555) and renews by itself

-- The account with each authority, by the URL of its directory.
CREATE TABLE acme_accounts (
    directory  text PRIMARY KEY,
    sealed_key bytea NOT NULL,
    contact    text NOT NULL,
    -- Where the authority keeps it; NULL until the authority has said so, and when it has to learn another contact.
    url        text
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
    -- When this attempt at it started, or is to start.
    order_began timestamptz,
    order_url   text,

    -- When something is to be done next: the renewal, or another attempt.
    due_at      timestamptz NOT NULL DEFAULT now(),
    failures    integer NOT NULL DEFAULT 0,
    last_error  text,
    failed_at   timestamptz,

    -- How the names are proven.
    challenge   text NOT NULL DEFAULT 'http-01' CHECK (challenge IN ('http-01', 'dns-01')),
    -- When the owner got the notice of its failure. Attempts fail until the cause is mended: there is one notice, and
    -- another only after there was a certificate.
    told_at     timestamptz,

    CHECK (num_nulls(chain, sealed_key, issuer, not_before, not_after) IN (0, 5)),
    CHECK (num_nulls(order_key, order_began) IN (0, 2)),
    CHECK (order_url IS NULL OR order_key IS NOT NULL)
);
