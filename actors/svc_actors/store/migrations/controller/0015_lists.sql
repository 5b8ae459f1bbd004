-- Lists of machines, tasks and addresses cost the same however many there are: an index for every order and filter that is
-- offered, and numbers that are kept instead of counted (see shared/0008_lists.sql).

DROP INDEX vms_listed;
CREATE INDEX vms_created ON vms (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_named ON vms (name, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_status ON vms (status, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_vcpus ON vms (vcpus, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_memory ON vms (memory_mib, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_project ON vms (project_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_pieces ON vms USING gin (text_pieces(ARRAY[name, hostname])) WITH (fastupdate = off);
-- An address is looked for by what it begins with.
CREATE INDEX allocations_text ON allocations (address_text(ip) text_pattern_ops);
CREATE INDEX allocations_ip ON allocations (ip);
CREATE INDEX allocations_state ON allocations (pool_id, state, ip);
CREATE INDEX allocations_changed ON allocations (pool_id, changed_at, ip);
CREATE INDEX allocations_noted ON allocations (pool_id) WHERE note IS NOT NULL;

CREATE INDEX projects_pieces ON projects USING gin (text_pieces(ARRAY[name])) WITH (fastupdate = off);
CREATE INDEX projects_created ON projects (created_at, id);

DROP INDEX tasks_listed;
CREATE INDEX tasks_created ON tasks (created_at, id);
DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (ended_at, id);
CREATE INDEX tasks_status ON tasks (status, created_at, id);
CREATE INDEX tasks_op ON tasks (op, created_at, id);
CREATE INDEX tasks_kind ON tasks (resource_kind, created_at, id);
CREATE INDEX tasks_project ON tasks (project_id, created_at, id);
CREATE INDEX tasks_words ON tasks USING gin (text_words(ARRAY[resource_name, op])) WITH (fastupdate = off);

CREATE VIEW vm_numbers AS
    SELECT 'vms by node' AS list, node_id AS scope, ARRAY[status] AS words, count(*) AS number
    FROM vms WHERE deleted_at IS NULL GROUP BY node_id, status
    UNION ALL
    SELECT 'vms by project', project_id, ARRAY[status], count(*)
    FROM vms WHERE deleted_at IS NULL GROUP BY project_id, status;

CREATE FUNCTION count_vm() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', OLD.node_id, ARRAY[OLD.status], -1),
                                        ('vms by project', OLD.project_id, ARRAY[OLD.status], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', NEW.node_id, ARRAY[NEW.status], 1),
                                        ('vms by project', NEW.project_id, ARRAY[NEW.status], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_counted AFTER INSERT OR DELETE ON vms FOR EACH ROW EXECUTE FUNCTION count_vm();
CREATE TRIGGER vms_recounted AFTER UPDATE OF status, node_id, project_id, deleted_at ON vms FOR EACH ROW
    WHEN ((OLD.status, OLD.node_id, OLD.project_id, OLD.deleted_at)
          IS DISTINCT FROM (NEW.status, NEW.node_id, NEW.project_id, NEW.deleted_at))
    EXECUTE FUNCTION count_vm();

-- Of tasks only those that have ended are kept count of: each once, instead of at each of its moves. The open ones are few
-- and have an index of their own.
CREATE VIEW task_numbers AS
    SELECT 'tasks' AS list, NULL::uuid AS scope, ARRAY[status, op, resource_kind] AS words, count(*) AS number
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY status, op, resource_kind
    UNION ALL
    SELECT 'tasks by project', project_id, '{}', count(*)
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY project_id;

CREATE FUNCTION count_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[OLD.status, OLD.op, OLD.resource_kind], -1),
                                        ('tasks by project', OLD.project_id, '{}', -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[NEW.status, NEW.op, NEW.resource_kind], 1),
                                        ('tasks by project', NEW.project_id, '{}', 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_counted AFTER INSERT OR DELETE ON tasks FOR EACH ROW EXECUTE FUNCTION count_task();
CREATE TRIGGER tasks_recounted AFTER UPDATE OF status, ended_at, project_id ON tasks FOR EACH ROW
    WHEN ((OLD.status, OLD.ended_at IS NULL, OLD.project_id) IS DISTINCT FROM (NEW.status, NEW.ended_at IS NULL, NEW.project_id)
          AND (OLD.ended_at IS NOT NULL OR NEW.ended_at IS NOT NULL))
    EXECUTE FUNCTION count_task();

CREATE VIEW address_numbers AS
    SELECT 'addresses by pool' AS list, pool_id AS scope, ARRAY[state] AS words, count(*) AS number
    FROM allocations GROUP BY pool_id, state;

CREATE FUNCTION count_address() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', OLD.pool_id, ARRAY[OLD.state], -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', NEW.pool_id, ARRAY[NEW.state], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER allocations_counted AFTER INSERT OR DELETE ON allocations FOR EACH ROW EXECUTE FUNCTION count_address();
CREATE TRIGGER allocations_recounted AFTER UPDATE OF state, pool_id ON allocations FOR EACH ROW
    WHEN ((OLD.state, OLD.pool_id) IS DISTINCT FROM (NEW.state, NEW.pool_id)) EXECUTE FUNCTION count_address();

-- A machine's month over all ledgers, so that a list of machines adds up nothing. Kept by what is added to the readings, of
-- which none ever goes back.
CREATE TABLE traffic_months (
    period   text COLLATE "C" NOT NULL,
    vm_id    uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    received bigint NOT NULL,
    sent     bigint NOT NULL,
    -- Where one ledger follows another, counting began anew.
    ledgers  bigint NOT NULL,
    resets   bigint NOT NULL,
    samples  bigint NOT NULL,
    first_at timestamptz NOT NULL,
    PRIMARY KEY (period, vm_id)
);
INSERT INTO traffic_months (period, vm_id, received, sent, ledgers, resets, samples, first_at)
    SELECT period, vm_id, sum(received), sum(sent), count(*), sum(resets), sum(samples), min(first_at)
    FROM traffic_readings GROUP BY period, vm_id;
CREATE INDEX traffic_months_vm ON traffic_months (vm_id);

CREATE FUNCTION add_to_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO traffic_months AS month (period, vm_id, received, sent, ledgers, resets, samples, first_at)
    VALUES (NEW.period, NEW.vm_id, NEW.received - coalesce(OLD.received, 0), NEW.sent - coalesce(OLD.sent, 0),
            CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE 0 END, NEW.resets - coalesce(OLD.resets, 0),
            NEW.samples - coalesce(OLD.samples, 0), NEW.first_at)
    ON CONFLICT (period, vm_id) DO UPDATE SET
        received = month.received + excluded.received, sent = month.sent + excluded.sent,
        ledgers = month.ledgers + excluded.ledgers, resets = month.resets + excluded.resets,
        samples = month.samples + excluded.samples, first_at = least(month.first_at, excluded.first_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER traffic_readings_added AFTER INSERT OR UPDATE ON traffic_readings
    FOR EACH ROW EXECUTE FUNCTION add_to_month();

INSERT INTO list_counts
    SELECT list, scope, words, number FROM vm_numbers
    UNION ALL SELECT list, scope, words, number FROM task_numbers
    UNION ALL SELECT list, scope, words, number FROM address_numbers;
