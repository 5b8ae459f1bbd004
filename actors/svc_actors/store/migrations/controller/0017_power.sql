-- Whether a machine shall run, beside what its host says that it does (docs/power.md).

ALTER TABLE vms
    ADD COLUMN desired_power    text NOT NULL DEFAULT 'stopped' CHECK (desired_power IN ('running', 'stopped')),
    ADD COLUMN restart_policy   text NOT NULL DEFAULT 'on_failure'
                                CHECK (restart_policy IN ('always', 'on_failure', 'never')),
    -- Failures in a row, of the guest and of attempts to start it again.
    ADD COLUMN restart_failures integer NOT NULL DEFAULT 0,
    -- Not started again by itself before then; infinity: not before somebody orders it.
    ADD COLUMN restart_after    timestamptz,
    -- Since when it runs, for a machine that does.
    ADD COLUMN running_since    timestamptz,
    -- Why it is off or paused, where its host knew.
    ADD COLUMN observed_cause   text;

-- What runs shall run. Of a machine that is off now nobody knows whether somebody wanted that.
UPDATE vms SET desired_power = 'running'
WHERE deleted_at IS NULL AND status IN ('running', 'starting', 'rebooting');
UPDATE vms SET running_since = now() WHERE deleted_at IS NULL AND status = 'running';
UPDATE vms SET desired_power = 'running'
WHERE deleted_at IS NULL AND status = 'creating'
  AND EXISTS (SELECT FROM tasks WHERE resource_id = vms.id AND op = 'vm.create' AND parameters->'start' = 'true');

-- Machines that are not as they shall be: few, but after a power cut.
CREATE INDEX vms_awaiting_power ON vms (node_id, created_at) WHERE deleted_at IS NULL AND built_at IS NOT NULL
    AND (desired_power = 'running' AND status = 'stopped' OR status = 'failed');
CREATE INDEX vms_with_failures ON vms (id) WHERE deleted_at IS NULL AND restart_failures > 0;
