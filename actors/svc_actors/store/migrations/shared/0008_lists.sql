-- What lists of any length need to answer at once: texts found by index, and how many there are without counting.

-- Every piece of one to three characters of the texts, in lower case. A text that contains another has all of its pieces, so
-- a GIN index of them finds what contains a text; for tables of some hundred thousand rows that change seldom. (The
-- extension pg_trgm would do for three characters and more, but the embedded server does not have it.)
CREATE FUNCTION text_pieces(texts text[]) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(DISTINCT substr(given, place, size)), '{}')
    FROM (SELECT DISTINCT lower(given) AS given FROM unnest(texts) given WHERE given IS NOT NULL) texts,
         generate_series(1, 3) size, generate_series(1, length(given) - size + 1) place
$$;

-- The pieces that tell most about a text that is looked for: its longest.
CREATE FUNCTION wanted_pieces(wanted text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_agg(DISTINCT substr(lower(wanted), place, least(3, length(lower(wanted)))))
    FROM generate_series(1, greatest(1, length(lower(wanted)) - 2)) place
$$;

-- The words of the texts, runs of letters and digits in lower case: for histories, which grow by the million. A GIN index of
-- them finds what has words beginning with others.
CREATE FUNCTION text_words(texts text[]) RETURNS tsvector LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT array_to_tsvector(coalesce(array_agg(DISTINCT left(word, 100)), '{}'))
    FROM regexp_split_to_table(lower(array_to_string(texts, ' ')), '[^[:alnum:]]+') word WHERE word <> ''
$$;

-- Matches where each of the words that are looked for begins a word; nowhere, where there are none.
CREATE FUNCTION wanted_words(wanted text) RETURNS tsquery LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT string_agg(quote_literal(left(word, 100)) || ':*', ' & ')::tsquery
    FROM regexp_split_to_table(lower(wanted), '[^[:alnum:]]+') word WHERE word <> ''
$$;

CREATE INDEX users_pieces ON users USING gin (text_pieces(ARRAY[email, name, company, phone])) WITH (fastupdate = off);
CREATE INDEX users_name ON users (name, id);
CREATE INDEX users_company ON users (company, id);
CREATE INDEX users_created ON users (created_at, id);
CREATE INDEX users_role ON users (role, email);
CREATE INDEX users_suspended ON users (email) WHERE suspended_at IS NOT NULL;
CREATE INDEX alerts_opened ON alerts (opened_at, id) WHERE closed_at IS NULL;

-- Entries are in the order of their numbers; `at` is their transaction's beginning, and says nothing else.
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_operation ON audit (operation, id);
CREATE INDEX audit_words ON audit USING gin (text_words(ARRAY[actor, operation, target_name, target_id]))
    WITH (fastupdate = off);

-- How many rows of a list there are, by what it is asked for: `scope` is a node or a project, `words` a status and the like.
-- A transaction that changes a number leaves the change in list_changes, where no two transactions meet; from time to time
-- they are added to list_counts (svc_actors/store/counts.py). The number is the sum of both.
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

-- The same by counting, of the lists that are here: where they begin, and what corrects them once a day.
CREATE VIEW audit_numbers AS
    SELECT 'audit' AS list, NULL::uuid AS scope, '{}'::text[] AS words, count(*) AS number FROM audit;

CREATE FUNCTION count_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_changes SELECT 'audit', NULL, '{}', CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
    FROM changed HAVING count(*) > 0;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_counted AFTER INSERT ON audit REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_audit();
CREATE TRIGGER audit_discounted AFTER DELETE ON audit REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_audit();

INSERT INTO list_counts SELECT list, scope, words, number FROM audit_numbers;
