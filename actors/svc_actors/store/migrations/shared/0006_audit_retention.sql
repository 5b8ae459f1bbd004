-- Audit rows leave the table only when they are old and were written to a file before. The service's role may neither
-- update nor delete them: it may call this one function, which looks for itself whether a row may go.

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

-- The floor that no setting goes below: who has broken into the service cannot remove the traces of the last month.
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
DROP TRIGGER audit_rows_stay ON audit;
CREATE TRIGGER audit_rows_stay BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay;

-- Remove those of the rows first_row to last_row that are older than `age` and exported; returns how many. A range of ids,
-- so that one batch does not look anew at the places that the last one has emptied.
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
GRANT DELETE ON audit TO CURRENT_USER;
