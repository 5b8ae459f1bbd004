-- What retention looks for: old tasks, machines deleted long ago.

CREATE INDEX tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX vms_deleted ON vms (deleted_at) WHERE deleted_at IS NOT NULL;
