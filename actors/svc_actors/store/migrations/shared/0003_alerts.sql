-- Alerts: what an operator should see, until it is over.

CREATE TABLE alerts (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- What the alert is about: an open alert with the same key is raised once.
    key             text NOT NULL,
    severity        text NOT NULL CHECK (severity IN ('warning', 'critical')),
    message         text NOT NULL,
    resource_kind   text,
    resource_id     text,
    opened_at       timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz,
    acknowledged_by uuid REFERENCES users,
    closed_at       timestamptz
);
CREATE UNIQUE INDEX alerts_open ON alerts (key) WHERE closed_at IS NULL;
