-- The functions that indexes are made of, in PL/pgSQL: what they do is planned once a connection. PostgreSQL parses the body of
-- a function in SQL anew for every statement that writes to an index of it, to see whether it can be inlined, which these
-- cannot; that was an eighth of the processor time of a machine's creation. What they return is as before.

CREATE OR REPLACE FUNCTION text_pieces(texts text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN (
        SELECT coalesce(array_agg(DISTINCT substr(given, place, size)), '{}')
        FROM (SELECT DISTINCT lower(given) AS given FROM unnest(texts) given WHERE given IS NOT NULL) texts,
             generate_series(1, 3) size, generate_series(1, length(given) - size + 1) place
    );
END
$$;

CREATE OR REPLACE FUNCTION text_words(texts text[]) RETURNS tsvector LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
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
