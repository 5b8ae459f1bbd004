-- What goes takes its alerts with it: those that are open are found by what they are about.

CREATE INDEX alerts_about ON alerts (resource_kind, resource_id) WHERE closed_at IS NULL;
