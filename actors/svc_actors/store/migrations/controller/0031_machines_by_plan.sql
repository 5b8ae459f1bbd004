-- The machines that a plan's backup policy is about, and how many have the plan.
CREATE INDEX vms_plan ON vms (plan_id) WHERE deleted_at IS NULL;
