-- The audit's hash chain (svc_actors/store/audit_seals.py). A seal covers the ids first_id to last_id, numbers that nobody
-- got included; its digest is over that of the seal before it and over its rows. Seals stay when their rows go to files.

CREATE TABLE audit_seals (
    number          bigint PRIMARY KEY CHECK (number > 0),
    first_id        bigint NOT NULL UNIQUE,
    last_id         bigint NOT NULL UNIQUE CHECK (last_id >= first_id),
    rows            integer NOT NULL CHECK (rows > 0),
    previous_digest text NOT NULL UNIQUE,
    digest          text NOT NULL UNIQUE,
    sealed_at       timestamptz NOT NULL
);
CREATE TRIGGER audit_seals_stay BEFORE UPDATE OR DELETE ON audit_seals
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_seals_are_kept BEFORE TRUNCATE ON audit_seals
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
