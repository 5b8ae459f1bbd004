-- Events. A transaction that changes something leaves its events in event_inbox; a single sequencer moves what was
-- committed into event, where positions are contiguous and in commit order. See svc_actors/store/events.py.

CREATE TABLE event_inbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    subject text,
    project_id uuid,
    node_id uuid,
    administrators_only boolean NOT NULL,
    payload jsonb NOT NULL
);

CREATE TABLE event (
    position bigint PRIMARY KEY,
    at timestamptz NOT NULL,
    kind text NOT NULL,
    subject text,
    project_id uuid,
    node_id uuid,
    administrators_only boolean NOT NULL,
    payload jsonb NOT NULL
);

-- Who did what. Rows are added and never changed: not by the service's own role either.

CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    actor_id uuid,
    actor text NOT NULL,
    role text NOT NULL,
    via text NOT NULL,
    impersonation_id uuid,
    impersonator_id uuid,
    token_id uuid,
    address text,
    request_id text NOT NULL,
    operation text NOT NULL,
    target_kind text NOT NULL,
    target_id text,
    target_name text,
    project_id uuid,
    outcome text NOT NULL,
    error_code text,
    details jsonb
);

CREATE INDEX audit_by_actor ON audit (actor_id, id);
CREATE INDEX audit_by_project ON audit (project_id, id);
CREATE INDEX audit_by_target ON audit (target_kind, target_id, id);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER audit_rows_stay BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_stays BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_rows_stay;
ALTER TABLE audit ENABLE ALWAYS TRIGGER audit_stays;
REVOKE UPDATE, DELETE, TRUNCATE ON audit FROM PUBLIC, CURRENT_USER;
