-- Machines that one statement inserts take their room in one update a node, not in one each: a hundred thousand rows would
-- leave as many dead versions of a thousand rows behind, every one of which the next update passes. What is gone already
-- held no room, and its removal costs nothing.

DROP TRIGGER vms_room_taken ON vms;

CREATE FUNCTION promise_room_to_new() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node_capacity SET
        promised_vcpus = promised_vcpus + wanted.vcpus,
        promised_memory_mib = promised_memory_mib + wanted.memory_mib,
        promised_disk_gib = promised_disk_gib + wanted.disk_gib
    FROM (SELECT made.node_id, sum(made.vcpus) AS vcpus, sum(made.memory_mib) AS memory_mib, sum(made.disk_gib) AS disk_gib
          FROM made WHERE made.deleted_at IS NULL AND NOT (made.status = 'failed' AND made.built_at IS NULL)
          GROUP BY made.node_id) wanted
    WHERE node_capacity.node_id = wanted.node_id;
    RETURN NULL;
END $$;

CREATE TRIGGER vms_room_taken AFTER INSERT ON vms REFERENCING NEW TABLE AS made FOR EACH STATEMENT
    EXECUTE FUNCTION promise_room_to_new();
CREATE TRIGGER vms_room_left AFTER DELETE ON vms FOR EACH ROW WHEN (OLD.deleted_at IS NULL)
    EXECUTE FUNCTION promise_room();
