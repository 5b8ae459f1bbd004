-- What a machine's creation and its task cost the database (docs/performance.md).

-- In PL/pgSQL for the same reason as text_words (shared/0010_text_functions.sql).
CREATE OR REPLACE FUNCTION address_text(address inet) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF family(address) = 4 THEN
        RETURN host(address);
    END IF;
    RETURN host(address) || '/' || masklen(address);
END
$$;

-- Room on each page for the next version of its rows: a change that touches no index is then written to none. A machine is
-- observed and its network applied soon after it was made; a task's log grows by its row as well.
ALTER TABLE vms SET (fillfactor = 70);
ALTER TABLE tasks SET (fillfactor = 70);
